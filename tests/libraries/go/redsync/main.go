// redsync over go-redis: a lock on three databases of the server.
package main

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"duramen/tests/libraries/go/did"

	"github.com/go-redsync/redsync/v4"
	driver "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

func main() {
	var pools []driver.Pool
	for db := range 3 {
		pools = append(pools, goredis.NewPool(redis.NewClient(&redis.Options{Addr: did.Address(), DB: db})))
	}
	locks := redsync.New(pools...)

	one := locks.NewMutex("lock", redsync.WithExpiry(5*time.Second))
	two := locks.NewMutex("lock", redsync.WithTries(1))
	did.Must(one.Lock())
	var taken *redsync.ErrTaken
	err := two.Lock()
	did.Check(errors.As(err, &taken), "two owners: %v", err)
	did.Check(two.TryLock() != nil, "two owners")
	before := one.Until()
	time.Sleep(100 * time.Millisecond)
	extended, err := one.Extend()
	did.Must(err)
	did.Check(extended && one.Until().After(before), "not extended")
	released, err := one.Unlock()
	did.Must(err)
	did.Check(released, "not released")
	did.Must(two.Lock())
	_, err = two.Unlock()
	did.Must(err)
	did.Did("contend, extend, release")

	var inside, most atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			// The default of 32 tries is not enough for 8 owners in turn on a busy machine.
			busy := locks.NewMutex("busy", redsync.WithTries(200), redsync.WithRetryDelay(20*time.Millisecond))
			did.Must(busy.Lock())
			most.Store(max(most.Load(), inside.Add(1)))
			time.Sleep(10 * time.Millisecond)
			inside.Add(-1)
			_, err := busy.Unlock()
			did.Must(err)
		}()
	}
	all.Wait()
	did.Check(most.Load() == 1, "%d inside", most.Load())
	did.Did("8 contenders, one inside")

	short := locks.NewMutex("short", redsync.WithExpiry(300*time.Millisecond))
	did.Must(short.Lock())
	next := locks.NewMutex("short", redsync.WithRetryDelay(50*time.Millisecond))
	did.Must(next.Lock())
	_, err = short.Unlock()
	did.Check(err != nil && strings.Contains(err.Error(), "lock"), "released a lock of another owner: %v", err)
	_, err = next.Unlock()
	did.Must(err)
	did.Did("expiry")
}
