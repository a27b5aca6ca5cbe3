// rueidis: commands, pipelines, transactions, scripts, messages, streams; caching at the client's
// side and its lock, which uses it.
package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"duramen/tests/libraries/go/did"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

var ctx = context.Background()

func main() {
	// A connection with the defaults of rueidis asks for CLIENT TRACKING.
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{did.Address()}})
	did.Must(err)
	did.Did("connect")
	commands(client)
	messages(client)
	caching(client)
	lock()
}

func commands(client rueidis.Client) {
	did.Must(client.Do(ctx, client.B().Set().Key("a").Value("1").Ex(time.Minute).Build()).Error())
	value, err := client.Do(ctx, client.B().Incrby().Key("a").Increment(41).Build()).AsInt64()
	did.Must(err)
	did.Check(value == 42, "%d", value)
	var many rueidis.Commands
	for n := range 1000 {
		many = append(many, client.B().Rpush().Key("list").Element(fmt.Sprint(n)).Build())
	}
	for n, result := range client.DoMulti(ctx, many...) {
		length, err := result.AsInt64()
		did.Must(err)
		did.Check(length == int64(n)+1, "%d is not in order: %d", n, length)
	}
	did.Must(client.Do(ctx, client.B().Hset().Key("hash").FieldValue().FieldValue("f", "v").Build()).Error())
	hash, err := client.Do(ctx, client.B().Hgetall().Key("hash").Build()).AsStrMap()
	did.Must(err)
	did.Check(hash["f"] == "v", "%v", hash)
	did.Did("commands, pipelines")

	did.Must(client.Dedicated(func(one rueidis.DedicatedClient) error {
		did.Must(one.Do(ctx, one.B().Watch().Key("a").Build()).Error())
		did.Must(client.Do(ctx, client.B().Set().Key("a").Value("changed").Build()).Error())
		results := one.DoMulti(ctx, one.B().Multi().Build(), one.B().Set().Key("a").Value("lost").Build(), one.B().Exec().Build())
		did.Check(rueidis.IsRedisNil(results[2].Error()), "EXEC in spite of a change: %v", results[2].Error())
		return nil
	}))
	script := rueidis.NewLuaScript("return {KEYS[1], ARGV[1], redis.call('GET', KEYS[1])}")
	answers, err := script.Exec(ctx, client, []string{"a"}, []string{"x"}).AsStrSlice()
	did.Must(err)
	did.Check(slices.Equal(answers, []string{"a", "x", "changed"}), "%v", answers)
	did.Did("WATCH, script")
}

func messages(client rueidis.Client) {
	heard := make(chan rueidis.PubSubMessage, 10)
	until, stop := context.WithCancel(ctx)
	ended := make(chan error)
	go func() {
		ended <- client.Receive(until, client.B().Subscribe().Channel("news").Build(), func(message rueidis.PubSubMessage) {
			heard <- message
		})
	}()
	did.WaitUntil(func() bool {
		count, err := client.Do(ctx, client.B().Publish().Channel("news").Message("hello").Build()).AsInt64()
		did.Must(err)
		return count == 1
	}, "subscribed")
	message := <-heard
	did.Check(message.Message == "hello", "%v", message)
	stop()
	did.Check(errors.Is(<-ended, context.Canceled), "not cancelled")

	did.Must(client.Do(ctx, client.B().XgroupCreate().Key("stream").Group("g").Id("$").Mkstream().Build()).Error())
	did.Must(client.Do(ctx, client.B().Xadd().Key("stream").Id("*").FieldValue().FieldValue("f", "v").Build()).Error())
	read, err := client.Do(ctx, client.B().Xreadgroup().Group("g", "c").Block(1000).Streams().Key("stream").Id(">").Build()).AsXRead()
	did.Must(err)
	did.Check(len(read["stream"]) == 1 && read["stream"][0].FieldValues["f"] == "v", "%v", read)
	did.Did("publish and subscribe, stream")
}

func caching(client rueidis.Client) {
	get := func() rueidis.RedisResult {
		return client.DoCache(ctx, client.B().Get().Key("cached").Cache(), time.Minute)
	}
	set := func(value string) {
		did.Must(client.Do(ctx, client.B().Set().Key("cached").Value(value).Build()).Error())
	}
	set("one")
	did.Must(get().Error())
	did.WaitUntil(func() bool { return get().IsCacheHit() }, "a hit of the cache")
	other, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{did.Address()}, DisableCache: true})
	did.Must(err)
	did.Must(other.Do(ctx, other.B().Set().Key("cached").Value("two").Build()).Error())
	did.WaitUntil(func() bool {
		value, err := get().ToString()
		did.Must(err)
		return value == "two"
	}, "another client's write invalidated the cache")
	did.Did("client-side caching: hit, invalidation")
}

func lock() {
	option := rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{did.Address()}},
		KeyMajority:    2,
		NoLoopTracking: true,
		KeyValidity:    2 * time.Second,
	}
	one, err := rueidislock.NewLocker(option)
	did.Must(err)
	two, err := rueidislock.NewLocker(option)
	did.Must(err)
	held, release, err := one.WithContext(ctx, "lock")
	did.Must(err)
	_, _, err = two.TryWithContext(ctx, "lock")
	did.Check(errors.Is(err, rueidislock.ErrNotLocked), "two owners: %v", err)
	time.Sleep(3 * time.Second)
	did.Must(held.Err())
	waited := make(chan func())
	go func() {
		_, release, err := two.WithContext(ctx, "lock")
		did.Must(err)
		waited <- release
	}()
	time.Sleep(200 * time.Millisecond)
	release()
	select {
	case release := <-waited:
		release()
	case <-time.After(1500 * time.Millisecond):
		did.Must(errors.New("the waiter was not told of the release"))
	}
	did.Did("rueidislock: contend, renew, a waiter is told")
}
