// The library from C++: containers whose memory lies on flash, and objects by placement new.
#include <duramen_alloc.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <new>
#include <string>
#include <vector>

template <class T> struct ssd_allocator {
    using value_type = T;
    ssd_allocator() = default;
    template <class U> ssd_allocator(const ssd_allocator<U> &) {}
    T *allocate(std::size_t count) {
        void *block = count == 1 ? ssd_oalloc(1, sizeof(T)) : ssd_malloc(count * sizeof(T));
        if (block == nullptr) throw std::bad_alloc();
        return static_cast<T *>(block);
    }
    void deallocate(T *block, std::size_t) { ssd_free(block); }
    template <class U> bool operator==(const ssd_allocator<U> &) const { return true; }
    template <class U> bool operator!=(const ssd_allocator<U> &) const { return false; }
};

static void check(bool holds, const char *what) {
    if (!holds) {
        std::fprintf(stderr, "%s: %s\n", what, ssd_error_message());
        std::exit(1);
    }
}

int main(int, char **argv) {
    std::string flash = std::string(argv[1]) + "/flash";
    ssd_options options{};
    options.flash_file = flash.c_str();
    options.flash_bytes = 64 << 20;
    options.ram_bytes = 6 << 20;
    int code = ssd_init(&options);
    check(code == SSD_OK, "init");
    {
        std::map<int, std::vector<int, ssd_allocator<int>>, std::less<int>,
                 ssd_allocator<std::pair<const int, std::vector<int, ssd_allocator<int>>>>>
            all;
        for (int i = 0; i < 3000; i++)
            for (int j = 0; j < i % 50; j++) all[i].push_back(i * j);
        for (auto &[key, list] : all)
            for (std::size_t j = 0; j < list.size(); j++) check(list[j] == key * static_cast<int>(j), "an element");
        check(all.size() == 3000 - 60, "all of them");
    }
    struct ssd_stats stats;
    check(ssd_stats(&stats) == SSD_OK && stats.allocated_bytes == 0, "everything is freed");
    check(ssd_close() == SSD_OK, "close");
    std::printf("ok\n");
}
