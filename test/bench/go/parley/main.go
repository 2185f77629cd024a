// A worker for the benchmarks, upon the Go package parley: prints the address of a relay, its own or the one that it was
// given; then "open <times>" or "turns <times>" in, milliseconds out.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/gluonfield/parley/noise"
	"github.com/gluonfield/parley/relayhttp"
	"github.com/gluonfield/parley/session"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

var ctx = context.Background()

func end(relay *relayhttp.Client) *session.Session {
	key, err := noise.GenerateKeypair()
	must(err)
	return session.New(key, relay, "bench")
}

func hear(s *session.Session) {
	for {
		messages, err := s.Poll(ctx, time.Second)
		must(err)
		if len(messages) > 0 {
			return
		}
	}
}

// Open, join, and the handshake until the opener has read the joiner's first words.
func pair(url string) (*session.Session, *session.Session) {
	relay := relayhttp.NewClient(url)
	opener, joiner := end(relay), end(relay)
	invite, err := opener.Open(ctx, "bench")
	must(err)
	must(joiner.Join(ctx, invite))
	must(joiner.Send(ctx, "hello"))
	_, err = opener.Poll(ctx, 0)
	must(err)
	_, err = joiner.Poll(ctx, 0)
	must(err)
	hear(opener)
	return opener, joiner
}

func main() {
	var url string
	if len(os.Args) > 1 {
		url = os.Args[1]
	} else {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		must(err)
		go http.Serve(listener, relayhttp.NewServer().Handler())
		url = "http://" + listener.Addr().String()
	}
	fmt.Println(url)
	text := strings.Repeat("x", 200)
	opener, joiner := pair(url)
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var what string
		var times int
		_, err := fmt.Sscanf(in.Text(), "%s %d", &what, &times)
		must(err)
		begun := time.Now()
		for range times {
			if what == "open" {
				pair(url)
				continue
			}
			must(joiner.Send(ctx, text))
			hear(opener)
			must(opener.Send(ctx, text))
			hear(joiner)
		}
		fmt.Println(float64(time.Since(begun).Nanoseconds()) / 1e6)
	}
}
