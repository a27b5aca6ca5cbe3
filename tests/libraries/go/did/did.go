// Package did is what all programs of this folder share: the server, and the lines that they print.
package did

import (
	"fmt"
	"net"
	"os"
	"time"
)

// Address of the server.
func Address() string {
	return net.JoinHostPort(or("REDIS_HOST", "127.0.0.1"), or("REDIS_PORT", "6379"))
}

func or(name, standard string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return standard
}

// Did prints what was done.
func Did(what string) {
	fmt.Println("did", what)
}

// Must ends the program if there is an error.
func Must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Check ends the program with this text unless the condition holds.
func Check(holds bool, text string, arguments ...any) {
	if !holds {
		Must(fmt.Errorf(text, arguments...))
	}
}

// WaitUntil polls the condition for 20 seconds.
func WaitUntil(condition func() bool, what string) {
	deadline := time.Now().Add(20 * time.Second)
	for !condition() {
		Check(time.Now().Before(deadline), "20 s passed and still not: %s", what)
		time.Sleep(20 * time.Millisecond)
	}
}
