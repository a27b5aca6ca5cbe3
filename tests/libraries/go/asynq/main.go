// asynq: a queue of tasks with results, retries, delays, unique tasks, groups and a scheduler.
package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"duramen/tests/libraries/go/did"

	"github.com/hibiken/asynq"
)

func main() {
	server := asynq.RedisClientOpt{Addr: did.Address()}
	client := asynq.NewClient(server)
	inspector := asynq.NewInspector(server)
	var added, ticks, grouped atomic.Int64
	var tries [10]atomic.Int64

	mux := asynq.NewServeMux()
	mux.HandleFunc("add", func(_ context.Context, task *asynq.Task) error {
		added.Add(1)
		_, err := task.ResultWriter().Write(task.Payload())
		return err
	})
	mux.HandleFunc("flaky", func(context.Context, *asynq.Task) error {
		if tries[0].Add(1) < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	mux.HandleFunc("broken", func(context.Context, *asynq.Task) error {
		return fmt.Errorf("as intended: %w", asynq.SkipRetry)
	})
	mux.HandleFunc("long", func(ctx context.Context, _ *asynq.Task) error {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", ctx.Err(), asynq.SkipRetry)
	})
	mux.HandleFunc("tick", func(context.Context, *asynq.Task) error {
		ticks.Add(1)
		return nil
	})
	mux.HandleFunc("group", func(_ context.Context, task *asynq.Task) error {
		grouped.Store(int64(len(strings.Split(string(task.Payload()), ","))))
		return nil
	})
	workers := asynq.NewServer(server, asynq.Config{
		Concurrency:              4,
		Queues:                   map[string]int{"default": 3, "low": 1},
		RetryDelayFunc:           func(int, error, *asynq.Task) time.Duration { return 100 * time.Millisecond },
		TaskCheckInterval:        100 * time.Millisecond,
		DelayedTaskCheckInterval: 100 * time.Millisecond,
		GroupGracePeriod:         time.Second,
		LogLevel:                 asynq.FatalLevel,
		GroupAggregator: asynq.GroupAggregatorFunc(func(_ string, tasks []*asynq.Task) *asynq.Task {
			var parts []string
			for _, task := range tasks {
				parts = append(parts, string(task.Payload()))
			}
			return asynq.NewTask("group", []byte(strings.Join(parts, ",")))
		}),
	})
	did.Must(workers.Ping())
	did.Must(workers.Start(mux))

	enqueue := func(kind, payload string, options ...asynq.Option) *asynq.TaskInfo {
		info, err := client.Enqueue(asynq.NewTask(kind, []byte(payload)), options...)
		did.Must(err)
		return info
	}
	state := func(info *asynq.TaskInfo) asynq.TaskState {
		now, err := inspector.GetTaskInfo(info.Queue, info.ID)
		did.Must(err)
		return now.State
	}
	is := func(info *asynq.TaskInfo, wanted asynq.TaskState) func() bool {
		return func() bool { return state(info) == wanted }
	}

	for n := range 50 {
		enqueue("add", fmt.Sprint(n), asynq.Queue([]string{"default", "low"}[n%2]))
	}
	did.WaitUntil(func() bool { return added.Load() == 50 }, "50 tasks ran")
	kept := enqueue("add", "result", asynq.Retention(time.Minute))
	did.WaitUntil(is(kept, asynq.TaskStateCompleted), "completed")
	now, err := inspector.GetTaskInfo("default", kept.ID)
	did.Must(err)
	did.Check(string(now.Result) == "result", "its result is %q", now.Result)
	did.Did("enqueue, work, results")

	// asynq counts whole seconds.
	start := time.Now()
	late := enqueue("add", "late", asynq.ProcessIn(2*time.Second), asynq.Retention(time.Minute))
	did.Check(state(late) == asynq.TaskStateScheduled, "not scheduled")
	did.WaitUntil(is(late, asynq.TaskStateCompleted), "the delayed task ran")
	did.Check(time.Since(start) > 900*time.Millisecond, "too early")
	did.Did("delay")

	flaky := enqueue("flaky", "", asynq.MaxRetry(5), asynq.Retention(time.Minute))
	did.WaitUntil(is(flaky, asynq.TaskStateCompleted), "retried")
	did.Check(tries[0].Load() == 3, "%d tries", tries[0].Load())
	broken := enqueue("broken", "")
	did.WaitUntil(is(broken, asynq.TaskStateArchived), "archived")
	did.Must(inspector.RunTask("default", broken.ID))
	did.WaitUntil(is(broken, asynq.TaskStateArchived), "archived again")
	did.Must(inspector.DeleteTask("default", broken.ID))
	did.Did("retry, archive, run and delete by hand")

	enqueue("add", "once", asynq.Unique(time.Minute), asynq.ProcessIn(time.Hour))
	_, err = client.Enqueue(asynq.NewTask("add", []byte("once")), asynq.Unique(time.Minute))
	did.Check(errors.Is(err, asynq.ErrDuplicateTask), "twice: %v", err)
	long := enqueue("long", "")
	did.WaitUntil(is(long, asynq.TaskStateActive), "active")
	// The subscription to cancellations may come later than the first task.
	did.WaitUntil(func() bool {
		did.Must(inspector.CancelProcessing(long.ID))
		return state(long) == asynq.TaskStateArchived
	}, "cancelled")
	did.Did("unique, cancel")

	for n := range 5 {
		enqueue("part", fmt.Sprint(n), asynq.Group("parts"))
	}
	did.WaitUntil(func() bool { return grouped.Load() == 5 }, "the group ran as one task")
	did.Did("group")

	scheduler := asynq.NewScheduler(server, &asynq.SchedulerOpts{LogLevel: asynq.FatalLevel})
	_, err = scheduler.Register("@every 1s", asynq.NewTask("tick", nil))
	did.Must(err)
	did.Must(scheduler.Start())
	did.WaitUntil(func() bool { return ticks.Load() >= 2 }, "two ticks")
	did.WaitUntil(func() bool {
		entries, err := inspector.SchedulerEntries()
		did.Must(err)
		return len(entries) == 1
	}, "an entry of the scheduler")
	scheduler.Shutdown()
	did.Did("scheduler")

	servers, err := inspector.Servers()
	did.Must(err)
	did.Check(len(servers) == 1, "%d servers", len(servers))
	did.Must(inspector.PauseQueue("low"))
	queue, err := inspector.GetQueueInfo("default")
	did.Must(err)
	did.Check(queue.Processed > 30 && queue.Scheduled == 1, "%+v", queue)
	workers.Shutdown()
	did.Must(inspector.DeleteQueue("low", true))
	did.Did("inspect, pause, shutdown")
}
