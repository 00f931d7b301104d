package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"

	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/tests/ask"
)

// freePorts returns n loopback ports that nobody listens on. They lie below the range that the
// kernel hands to outgoing connections (32768 and up), so that none of those can take one before
// its part listens.
func freePorts(n int) ([]int, error) {
	const low, high = 11000, 32000
	var ports []int
	for range 100 * n { // most tries succeed: a machine listens on few of 21,000 ports
		port := low + rand.IntN(high-low)
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			continue
		}
		defer func() { _ = l.Close() }() // on return, so that no port comes twice
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("finding %d free loopback ports: none between %d and %d", n, low, high)
}

func loopback(scheme string, port int) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, port) }

// get returns a question whether url answers 200 to c, for Command.Ready. Only the CA of e is used.
func get(url string, e Endpoint, c Credentials) func(context.Context) error {
	var client *http.Client // made at the first question, when the files are surely there
	return func(ctx context.Context) error {
		if client == nil {
			var err error
			if client, err = rest.HTTPClientFor(e.RESTConfig(c)); err != nil {
				return err
			}
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // a hung answer is no answer
		defer cancel()
		return ask.Serves(ctx, client, url)
	}
}

// eventually asks until the answer is nil, ctx ends, or it is over.
func eventually(ctx context.Context, ready func(context.Context) error, over <-chan struct{}) error {
	tick := time.NewTicker(20 * time.Millisecond) // kube-apiserver is ready in seconds, and asking costs it microseconds
	defer tick.Stop()
	for last := errors.New("not asked yet"); ; last = ready(ctx) {
		if last == nil {
			return nil
		}
		select {
		case <-over:
			return last
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", ctx.Err(), last)
		case <-tick.C:
		}
	}
}
