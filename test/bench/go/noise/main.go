// A worker for the benchmarks: "handshake <times>" or "transport <bytes> <times>" in, milliseconds out.
package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/flynn/noise"
)

var suite = noise.NewCipherSuite(noise.DH25519, noise.CipherChaChaPoly, noise.HashSHA256)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func key() noise.DHKey {
	k, err := suite.GenerateKeypair(rand.Reader)
	must(err)
	return k
}

var (
	joiner, opener = key(), key()
	psk            = bytes.Repeat([]byte{7}, 32)
	prologue       = make([]byte, 24)
	payload        = make([]byte, 19)
)

func handshake() (*noise.CipherState, *noise.CipherState) {
	config := noise.Config{CipherSuite: suite, Pattern: noise.HandshakeIK, Prologue: prologue, PresharedKey: psk, PresharedKeyPlacement: 1}
	initiator, responder := config, config
	initiator.Initiator, initiator.StaticKeypair, initiator.PeerStatic = true, joiner, opener.Public
	responder.StaticKeypair = opener
	a, err := noise.NewHandshakeState(initiator)
	must(err)
	b, err := noise.NewHandshakeState(responder)
	must(err)
	first, _, _, err := a.WriteMessage(nil, payload)
	must(err)
	_, _, _, err = b.ReadMessage(nil, first)
	must(err)
	second, receive, _, err := b.WriteMessage(nil, payload)
	must(err)
	_, send, _, err := a.ReadMessage(nil, second)
	must(err)
	return send, receive
}

// Time of this process alone, whatever else runs.
func used() time.Duration {
	var usage syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var what string
		var size, times int
		if _, err := fmt.Sscanf(in.Text(), "handshake %d", &times); err == nil {
			what = "handshake"
		} else {
			_, err := fmt.Sscanf(in.Text(), "transport %d %d", &size, &times)
			must(err)
		}
		var begun time.Duration
		if what == "handshake" {
			begun = used()
			for range times {
				handshake()
			}
		} else {
			send, receive := handshake()
			plain := bytes.Repeat([]byte{1}, size)
			begun = used()
			for range times {
				sealed, err := send.Encrypt(nil, nil, plain)
				must(err)
				opened, err := receive.Decrypt(nil, nil, sealed)
				must(err)
				if len(opened) != size {
					panic("length")
				}
			}
		}
		fmt.Println(float64((used() - begun).Nanoseconds()) / 1e6)
	}
}
