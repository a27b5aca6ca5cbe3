// The scenarios of tests/clients/README.md by go-redis.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	ctx     = context.Background()
	options redis.Options
)

func open() *redis.Client {
	own := options
	return redis.NewClient(&own)
}

func equal(found, wanted any) error {
	if !reflect.DeepEqual(found, wanted) {
		return fmt.Errorf("found %.200v, wanted %.200v", found, wanted)
	}
	return nil
}

// all gives the first error of its arguments.
func all(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// same checks the result of a command that must not fail.
func same[T any](wanted T) func(T, error) error {
	return func(found T, err error) error {
		if err != nil {
			return err
		}
		return equal(found, wanted)
	}
}

// absent checks that a command found no key.
func absent(_ string, err error) error {
	if err == redis.Nil {
		return nil
	}
	return fmt.Errorf("wanted no value, error is %v", err)
}

func connect(r *redis.Client) error {
	info, err := r.Do(ctx, "CLIENT", "INFO").Text()
	if err == nil && !strings.Contains(info, fmt.Sprintf("resp=%d", options.Protocol)) {
		err = errors.New("wrong version of RESP: " + info)
	}
	return all(err, same("PONG")(r.Ping(ctx).Result()))
}

func stringCommands(r *redis.Client) error {
	return all(
		same("OK")(r.Set(ctx, "s", "1", 100*time.Second).Result()),
		same(false)(r.SetNX(ctx, "s", "2", 0).Result()),
		same("1")(r.SetArgs(ctx, "s", "3", redis.SetArgs{Mode: "XX", Get: true}).Result()),
		same("3")(r.Get(ctx, "s").Result()),
		same(int64(2))(r.Append(ctx, "s", "4").Result()),
		same(int64(42))(r.IncrBy(ctx, "s", 8).Result()),
		same("OK")(r.MSet(ctx, "s1", "a", "s2", "b").Result()),
		same([]any{"a", nil, "b"})(r.MGet(ctx, "s1", "none", "s2").Result()),
		same(int64(3))(r.Del(ctx, "s", "s1", "s2", "none").Result()),
		absent(r.Get(ctx, "s").Result()),
	)
}

func pipeline(r *redis.Client) error {
	pipe := r.Pipeline()
	gets := make([]*redis.StringCmd, 5000)
	for i := range gets {
		pipe.Set(ctx, "p"+strconv.Itoa(i), i, 0)
		gets[i] = pipe.Get(ctx, "p"+strconv.Itoa(i))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	for i, get := range gets {
		if err := equal(get.Val(), strconv.Itoa(i)); err != nil {
			return err
		}
	}
	return nil
}

func transaction(r *redis.Client) error {
	r.Del(ctx, "t")
	var get *redis.StringCmd
	_, err := r.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "t", 1, 0)
		pipe.Incr(ctx, "t")
		get = pipe.Get(ctx, "t")
		return nil
	})
	if err = all(err, equal(get.Val(), "2")); err != nil {
		return err
	}
	own := r.Conn()
	defer own.Close()
	return all(
		own.Process(ctx, redis.NewStatusCmd(ctx, "MULTI")),
		own.Set(ctx, "t", 9, 0).Err(),
		own.Process(ctx, redis.NewStatusCmd(ctx, "DISCARD")),
		same("2")(r.Get(ctx, "t").Result()),
	)
}

func watch(r *redis.Client) error {
	other := open()
	defer other.Close()
	set := func(value, meddle string) error {
		return r.Watch(ctx, func(tx *redis.Tx) error {
			if meddle != "" {
				other.Set(ctx, "w", meddle, 0)
			}
			_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
				pipe.Set(ctx, "w", value, 0)
				return nil
			})
			return err
		}, "w")
	}
	r.Set(ctx, "w", "1", 0)
	if err := set("3", "2"); err != redis.TxFailedErr {
		return fmt.Errorf("EXEC after a change of the watched key: %v", err)
	}
	return all(
		same("2")(r.Get(ctx, "w").Result()),
		set("4", ""),
		same("4")(r.Get(ctx, "w").Result()),
	)
}

func everyByte() []byte {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	return every
}

func big(r *redis.Client) error {
	value := bytes.Repeat(everyByte(), 4096)
	if err := r.Set(ctx, "big", value, 0).Err(); err != nil {
		return err
	}
	found, err := r.Get(ctx, "big").Bytes()
	if err == nil && !bytes.Equal(found, value) {
		err = errors.New("the value came back changed")
	}
	return err
}

func binary(r *redis.Client) error {
	pairs := [][2]string{{string(everyByte()), "\xff\x00\xfe"}, {"\r\n", "\r\n$5\r\n"}, {"\x00", ""}}
	for _, pair := range pairs {
		err := all(r.Set(ctx, pair[0], pair[1], 0).Err(), same(pair[1])(r.Get(ctx, pair[0]).Result()))
		if err != nil {
			return err
		}
	}
	return nil
}

func expiry(r *redis.Client) error {
	r.Set(ctx, "e", 1, 60*time.Millisecond)
	deadline := time.Now().Add(10 * time.Second)
	for r.Get(ctx, "e").Err() != redis.Nil {
		if time.Now().After(deadline) {
			return errors.New("a key of 60 ms still lives after 10 s")
		}
	}
	r.Set(ctx, "e", 1, time.Minute)
	left, err := r.PTTL(ctx, "e").Result()
	if err == nil && (left <= 0 || left > time.Minute) {
		err = fmt.Errorf("PTTL %v", left)
	}
	return all(
		err,
		same(true)(r.Persist(ctx, "e").Result()),
		same(time.Duration(-1))(r.PTTL(ctx, "e").Result()),
		same(time.Duration(-2))(r.PTTL(ctx, "none").Result()),
	)
}

func scan(r *redis.Client) error {
	pipe := r.Pipeline()
	for i := 0; i < 3000; i++ {
		pipe.Set(ctx, "scan:"+strconv.Itoa(i), 1, 0)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return err
	}
	found := map[string]bool{}
	iterator := r.Scan(ctx, 0, "scan:*", 100).Iterator()
	for iterator.Next(ctx) {
		found[iterator.Val()] = true
	}
	return all(iterator.Err(), equal(len(found), 3000))
}

func errorReplies(r *redis.Client) error {
	r.Set(ctx, "text", "abc", 0)
	if err := r.Incr(ctx, "text").Err(); err == nil || !strings.Contains(err.Error(), "not an integer") {
		return fmt.Errorf("INCR of a text: %v", err)
	}
	if err := r.Do(ctx, "NO-SUCH-COMMAND").Err(); err == nil || !strings.Contains(err.Error(), "unknown command") {
		return fmt.Errorf("unknown command: %v", err)
	}
	return same("abc")(r.Get(ctx, "text").Result())
}

func concurrent(r *redis.Client) error {
	r.Del(ctx, "count")
	var group sync.WaitGroup
	for i := 0; i < 8; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			own := open()
			defer own.Close()
			for j := 0; j < 250; j++ {
				own.Incr(ctx, "count")
			}
		}()
	}
	group.Wait()
	return same("2000")(r.Get(ctx, "count").Result())
}

func reconnect(r *redis.Client) error {
	if err := r.Set(ctx, "before", 1, 0).Err(); err != nil {
		return err
	}
	fmt.Println("kill me")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := r.Set(ctx, "after", 1, 0).Err()
		if err == nil {
			return same("1")(r.Get(ctx, "after").Result())
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

func denied(r *redis.Client) error {
	for _, command := range [][]any{{"CONFIG", "GET", "port"}, {"GET", "denied"}} {
		err := r.Do(ctx, command...).Err()
		if _, replied := err.(redis.Error); !replied || !strings.HasPrefix(err.Error(), "NOPERM") {
			return fmt.Errorf("%v gave %v", command, err)
		}
	}
	return same("PONG")(r.Ping(ctx).Result())
}

// encryption is the TLS that the environment asks for; nil without it.
func encryption() (*tls.Config, error) {
	authority := os.Getenv("CLIENT_CA")
	if authority == "" {
		return nil, nil
	}
	text, err := os.ReadFile(authority)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13}
	config.RootCAs.AppendCertsFromPEM(text)
	if path := os.Getenv("CLIENT_CERT"); path != "" {
		pair, err := tls.LoadX509KeyPair(path, os.Getenv("CLIENT_KEY"))
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

func main() {
	protocol, err := strconv.Atoi(os.Args[3])
	if err != nil {
		panic(err)
	}
	if os.Args[1] == "cluster" {
		clusterMain(os.Args[2], protocol)
		return
	}
	options = redis.Options{Addr: os.Args[1] + ":" + os.Args[2], Protocol: protocol, ReadTimeout: 20 * time.Second}
	options.Username, options.Password = os.Getenv("CLIENT_USER"), os.Getenv("CLIENT_PASSWORD")
	if options.TLSConfig, err = encryption(); err != nil {
		panic(err)
	}
	r := open()
	type scenario struct {
		name string
		run  func(*redis.Client) error
	}
	scenarios := []scenario{
		{"connect", connect}, {"strings", stringCommands}, {"pipeline", pipeline}, {"transaction", transaction},
		{"watch", watch}, {"big", big}, {"binary", binary}, {"expiry", expiry}, {"scan", scan},
		{"errors", errorReplies}, {"concurrent", concurrent}, {"reconnect", reconnect},
	}
	if os.Getenv("CLIENT_REFUSED") != "" {
		scenarios = scenarios[:1]
	} else if options.Username != "" {
		scenarios = append(scenarios, scenario{"denied", denied})
	}
	for _, scenario := range scenarios {
		if err := scenario.run(r); err != nil {
			fmt.Println("fail", scenario.name, strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Println("pass", scenario.name)
		}
	}
}
