import java.util.concurrent.Callable;

/** The server, and the lines that all programs print. */
final class Did {
    static final String HOST = or("REDIS_HOST", "127.0.0.1");
    static final int PORT = Integer.parseInt(or("REDIS_PORT", "6379"));

    private Did() {}

    private static String or(String name, String standard) {
        String value = System.getenv(name);
        return value == null ? standard : value;
    }

    static void did(String what) {
        System.out.println("did " + what);
        System.out.flush();
    }

    static void check(boolean holds, String text) {
        if (!holds) {
            throw new AssertionError(text);
        }
    }

    static void same(Object wanted, Object got) {
        check(wanted.equals(got), got + ", not " + wanted);
    }

    static <E extends Throwable> E raises(Class<E> kind, Callable<?> work) throws Exception {
        Object result;
        try {
            result = work.call();
        } catch (Throwable error) {
            if (kind.isInstance(error)) {
                return kind.cast(error);
            }
            throw error;
        }
        throw new AssertionError("no " + kind.getSimpleName() + ", but " + result);
    }

    static void waitUntil(String what, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + 20_000_000_000L;
        while (!condition.call()) {
            check(System.nanoTime() < deadline, "20 s passed and still not: " + what);
            Thread.sleep(20);
        }
    }

    interface Program {
        void run() throws Exception;
    }

    /** Runs a program and ends the process, whatever threads the library still has. */
    static void main(Program program) {
        try {
            program.run();
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }
}
