package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/kit/ask"
	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

// FreePorts returns n unused ports of Config.Loopback below the range for outgoing connections
// (32768 and up), so that none of those takes one before its server listens. Nor does another call in any process:
// until this one ends it holds UDP's port of the same number, which no server uses.
func (c Config) FreePorts(n int) ([]int, error) {
	const low, high = 11000, 32000
	var ports []int
	for range 100 * n { // most tries succeed: a machine listens on few of 21,000 ports
		port := low + rand.IntN(high-low)
		l, err := net.Listen("tcp", net.JoinHostPort(c.Loopback, strconv.Itoa(port)))
		if err != nil {
			continue
		}
		_ = l.Close()
		held, err := net.ListenPacket("udp", l.Addr().String())
		if err != nil {
			continue
		}
		go func() { // ends with the process, and keeps held from the collector, which would close it
			for err := error(nil); err == nil; {
				_, _, err = held.ReadFrom(make([]byte, 1))
			}
		}()
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("finding %d free loopback ports: none between %d and %d", n, low, high)
}

func url(scheme, host string, port int) string {
	return scheme + "://" + net.JoinHostPort(host, strconv.Itoa(port))
}

// Serves returns a Command.Ready that checks for a 200 from a path of e.
func (e Endpoint) Serves(path string, c Credentials) func(context.Context) error {
	return func(ctx context.Context) error {
		client, err := rest.HTTPClientFor(e.RESTConfig(c)) // client-go keeps its connections from call to call
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // a server that hangs is not ready
		defer cancel()
		return ask.Serves(ctx, client, e.URL+path)
	}
}

// Probed returns a Command.Ready that checks whether a Fairlead's probes of these APIServices have passed. It sends no
// requests for them: those that come too early get 503, of which kubectl fairlead status tells for a minute, and fails.
func (e Endpoint) Probed(c Credentials, names ...string) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		defer try.Catch(&err)
		client := try.Get(rest.HTTPClientFor(e.RESTConfig(c)))
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // a server that hangs is not ready
		defer cancel()
		var status struct {
			APIServices []struct {
				Name    string
				Verdict struct{ Status, Reason, Message string }
			}
		}
		try.Do(json.Unmarshal([]byte(try.Get(ask.Get(ctx, client, e.URL+"/fairlead/status"))), &status))
		left := slices.Clone(names)
		for _, a := range status.APIServices {
			if a.Verdict.Status == "True" {
				left = slices.DeleteFunc(left, func(name string) bool { return name == a.Name })
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("not available: %v of %+v", left, status.APIServices)
		}
		return nil
	}
}

// Listens returns a Command.Ready that checks whether a server accepts connections.
func Listens(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second) // of its host, packets may be lost
		defer cancel()
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// eventually calls ready until it returns nil, ctx ends, or over is closed.
func eventually(ctx context.Context, ready func(context.Context) error, over <-chan struct{}) error {
	var last error
	const every = 20 * time.Millisecond // kube-apiserver takes seconds, and a check costs it microseconds
	late := wait.PollUntilContextCancel(ctx, every, true, func(ctx context.Context) (bool, error) {
		last = ready(ctx)
		select {
		case <-over:
			return true, nil
		default:
			return last == nil, nil
		}
	})
	if late != nil {
		return fmt.Errorf("%w (%w)", late, last)
	}
	return last
}
