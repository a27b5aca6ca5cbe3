"""The libraries, in the order of the table: their programs, packages and limits of time."""

import dataclasses
import pathlib

import places

HERE = pathlib.Path(__file__).resolve().parent


@dataclasses.dataclass(frozen=True)
class Library:
    # As the table shows it; the command takes it, or a part of it.
    name: str
    language: str
    # The file of its program, or the class.
    program: str
    # The package whose version the table shows.
    package: str
    # Whether continuous integration runs it: it is installed and done within seconds.
    quick: bool = False
    # Debian's packages that it needs.
    debian: tuple = ()
    # Longest time of its program.
    limit_s: int = 180

    def command(self):
        """The command of its program, after its installation; raises [places.Missing]."""
        if self.language == "python":
            return [places.python(), f"{HERE}/python/{self.program}.py"]
        if self.language == "node":
            return ["node", f"{places.node()}/{self.program}.js"]
        if self.language == "go":
            return [f"{places.go()}/{self.program}"]
        if self.language == "java":
            return ["java", "-XX:TieredStopAtLevel=1", "-cp", places.java(), self.program]
        places.debian(*self.debian)
        return [self.language, f"{HERE}/{self.language}/{self.program}.{'rb' if self.language == 'ruby' else 'php'}"]

    def version(self):
        return places.version(self.language, self.package)


RUBY = ("ruby", "ruby-redis")
PHP = ("php-cli", "php-redis")
LARAVEL = ("php-illuminate-cache", "php-illuminate-queue", "php-illuminate-redis", "php-illuminate-session")

LIBRARIES = [
    Library("redis-py's Lock", "python", "redis_py_lock", "redis", quick=True),
    Library("Celery, broker and results", "python", "celery_tasks", "celery", quick=True),
    Library("RQ", "python", "rq_queue", "rq", quick=True),
    Library("huey", "python", "huey_tasks", "huey"),
    Library("django-redis", "python", "django_cache", "django-redis", quick=True),
    Library("limits", "python", "limits_windows", "limits"),
    Library("pottery's Redlock", "python", "pottery_redlock", "pottery", quick=True),
    Library("python-redis-lock", "python", "python_redis_lock", "python-redis-lock"),
    Library("BullMQ", "node", "bullmq", "bullmq", quick=True),
    Library("connect-redis", "node", "connect_redis", "connect-redis", quick=True),
    Library("socket.io's adapter", "node", "socketio", "@socket.io/redis-adapter", quick=True),
    Library("redlock", "node", "redlock", "redlock", quick=True),
    Library("rate-limiter-flexible", "node", "rate_limiter_flexible", "rate-limiter-flexible"),
    Library("asynq", "go", "asynq", "github.com/hibiken/asynq"),
    Library("rueidis and its lock", "go", "rueidis", "github.com/redis/rueidis", quick=True),
    Library("redsync", "go", "redsync", "github.com/go-redsync/redsync/v4", quick=True),
    Library("Redisson", "java", "RedissonObjects", "redisson"),
    Library("Spring Data Redis", "java", "SpringData", "spring-data-redis"),
    Library("Spring Session", "java", "SpringSession", "spring-session-data-redis"),
    Library("redis-rb", "ruby", "redis_rb", "ruby-redis", debian=RUBY),
    Library("Sidekiq", "ruby", "sidekiq_jobs", "ruby-sidekiq", debian=(*RUBY, "ruby-sidekiq"), limit_s=300),
    Library("phpredis", "php", "phpredis", "php-redis", debian=PHP),
    Library("Laravel", "php", "laravel", "php-illuminate-redis", debian=(*PHP, *LARAVEL, "php-predis")),
]

# In the table, with the reason.
NOT_TO_BE_HAD = {
    "StackExchange.Redis, IDistributedCache": "the registries of these tests have neither .NET nor its packages",
}
