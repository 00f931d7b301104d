package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-proxy/fairlead/tests/cluster/relay"
	"github.com/fairlead-proxy/fairlead/tests/kit/try"
)

// flowing is how long bodies flow: 25 of the longer round trips. Windows need the first few to grow.
const flowing = 5 * time.Second

// distance measures the throughput of long bodies from a distant extension server, and from distant clients.
func distance(ctx context.Context, w *world) {
	ctx, cancel := context.WithCancel(ctx) // ends the relays
	defer cancel()
	for _, trip := range []time.Duration{50 * time.Millisecond, 200 * time.Millisecond} {
		w.downloads(ctx, trip)
		w.uploads(ctx, trip)
	}
}

// distant returns an address that forwards to another until ctx ends. Each direction takes half of trip.
func distant(ctx context.Context, to string, trip time.Duration) string {
	r := try.Get(relay.Start(ctx, to))
	r.Delay(trip / 2)
	return r.Address
}

func (w *world) downloads(ctx context.Context, trip time.Duration) {
	far := distant(ctx, w.backend, trip)
	ours := w.fromFolder(ctx, fmt.Sprintf("far-%v", trip), 1, []string{far})
	defer ours.part.Kill()
	bare := &peer{name: reverse, backend: far}
	w.startPeer(ctx, bare)
	defer bare.part.Kill()
	w.flows(ctx, fmt.Sprintf("download-%v", trip), []*peer{ours.as(fairlead), bare, {name: direct, address: far}}, http.MethodGet)
}

func (w *world) uploads(ctx context.Context, trip time.Duration) {
	list := w.want(ctx, fairlead, reverse, direct)
	for i, p := range list {
		list[i] = p.as(p.name)
		list[i].address = distant(ctx, p.address, trip)
	}
	w.flows(ctx, fmt.Sprintf("upload-%v", trip), list, http.MethodPost)
}

func (w *world) flows(ctx context.Context, name string, list []*peer, method string) {
	for _, streams := range []int{1, 20} {
		inTurns(list, min(w.o.rounds, 3), func(p *peer) {
			w.fresh(ctx, p)
			w.r.add(fmt.Sprintf("%s-%d", name, streams), p.name, w.flow(ctx, p.address, method, streams))
		})
	}
}

// flow measures endless bodies on a new connection that has carried one request: handshakes are not
// measured, and windows still have to grow.
func (w *world) flow(ctx context.Context, address, method string, streams int) sample {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: w.tls.Clone(), ForceAttemptHTTP2: true}}
	defer client.CloseIdleConnections()
	try.Do(new(endless).exchange(ctx, client, http.MethodGet, "https://"+address+resources+"/one"))
	ctx, cancel := context.WithTimeout(ctx, flowing)
	defer cancel()
	var body endless
	var all errgroup.Group
	for range streams {
		all.Go(func() error {
			if err := body.exchange(ctx, client, method, "https://"+address+resources+"/endless"); !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("an endless body ended: %w", cmp.Or(err, io.EOF))
			}
			return nil
		})
	}
	try.Do(all.Wait())
	return sample{Flow: float64(body.Load()) / 1e6 / flowing.Seconds()}
}

// endless sends or receives bodies and counts their bytes. What is sent counts before it arrives:
// an error of one round trip in five seconds.
type endless struct{ atomic.Int64 }

func (e *endless) exchange(ctx context.Context, client *http.Client, method, url string) (err error) {
	defer try.Catch(&err)
	var body io.Reader
	if method == http.MethodPost {
		body = e
	}
	req := try.Get(http.NewRequestWithContext(ctx, method, url, body))
	req.Header.Set("Authorization", "Bearer "+token())
	resp, err := client.Do(req)
	try.Do(err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s", method, url, resp.Status)
	}
	_, err = io.Copy(e, resp.Body)
	return err
}

func (e *endless) Read(b []byte) (int, error) { return e.Write(b) }

func (e *endless) Write(b []byte) (int, error) {
	e.Add(int64(len(b)))
	return len(b), nil
}
