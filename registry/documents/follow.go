package documents

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/fairlead-proxy/fairlead/internal/latest"
)

const (
	// leastRest is the least pause between two requests: events of one change cause one request.
	leastRest = 20 * time.Millisecond
	// restFactor is how much longer than a request or a publication the pause after it is: in a storm of changes
	// fetching, reading and merging growing documents takes a fifth of a core each.
	restFactor = 4
	firstAgain = 100 * time.Millisecond // the pause after a first failure; it doubles up to Every
	// firstHurry and lastHurry are the pauses after the request that follows a hint, doubling: kube-apiserver's
	// discovery changes tens of milliseconds before or after the CRD or APIService, its OpenAPI a second or two.
	firstHurry = 30 * time.Millisecond
	lastHurry  = time.Second
)

func retries(first, last time.Duration) wait.DelayFunc {
	return wait.Backoff{Duration: min(first, last), Factor: 2, Steps: 10, Cap: last}.DelayFunc()
}

// around returns d ± 20 %, which keeps replicas and backends from asking in step.
func around(d time.Duration) time.Duration { return wait.Jitter(d*4/5, 0.5) }

// followLocal asks a local apiserver until ctx ends. Then it is none any more. It is for servers
// with hints of changes; backends have their own pace, see backend.run.
func (s *Sources[S, L]) followLocal(ctx context.Context, server string) {
	l := &local[L]{hints: make(chan struct{}, 1)}
	s.locals.Store(server, l)
	every, hurry := s.kind.Every, time.Duration(0)
	retry := retries(firstAgain, every)
	for ctx.Err() == nil {
		begun := time.Now()
		err := s.kind.AskLocal(ctx, server, &l.known)
		if ctx.Err() != nil {
			break
		}
		s.polls.WithLabelValues(string(cmp.Or(reasonOf(err), "ok"))).Inc()
		l.fault.Store(&err)
		rest, pause := min(max(leastRest, restFactor*time.Since(begun)), every), every
		if reasonOf(err) == ReasonTimeout { // it has waited, as for one that restarts, and must not miss its return
			rest, pause = leastRest, leastRest
		} else if err != nil {
			pause = retry()
		} else if retry = retries(firstAgain, every); hurry > 0 {
			pause = min(hurry, every)
			if hurry *= 2; hurry > lastHurry {
				hurry = 0
			}
		}
		latest.Sleep(ctx, rest)
		select {
		case <-time.After(pause - rest):
		case <-l.hints:
			hurry = firstHurry
		case <-ctx.Done():
		}
	}
	s.locals.CompareAndDelete(server, l) // it may have come back
	s.Touch()
}

const (
	// firstRewatch and lastRewatch are the pauses between watches, doubling. A watcher also asks from time to time.
	firstRewatch = time.Second
	lastRewatch  = 30 * time.Second
	// metadataOnly saves sending the objects: the schemas of a thousand custom resources are tens of megabytes.
	metadataOnly = ";g=meta.k8s.io;v=v1,application/json"
)

// Watch calls changed whenever something in a collection has changed, or may have. It parses and
// keeps no objects. do sends a request that may last for hours. Watch returns when ctx ends. If the
// collection cannot be watched, it tries again and again: only the hints are missing meanwhile.
func Watch(ctx context.Context, do Do, path string, changed func()) error {
	retry := retries(firstRewatch, lastRewatch)
	for {
		begun := time.Now()
		if err := watchOnce(ctx, do, path, changed); err == nil || time.Since(begun) > lastRewatch {
			retry = retries(firstRewatch, lastRewatch) // it has ended normally
		}
		if !latest.Sleep(ctx, around(retry())) {
			return ctx.Err()
		}
	}
}

func watchOnce(ctx context.Context, do Do, path string, changed func()) error {
	// Begin now: without a resourceVersion the server would first send all objects.
	q := Question{Path: path, Query: "limit=1", Accept: "application/json;as=PartialObjectMetadataList" + metadataOnly}
	a, err := Get(ctx, do, q)
	if err != nil {
		return err
	}
	var list struct{ Metadata metav1.ListMeta }
	err = json.Unmarshal(a.Body, &list)
	if err != nil || a.Status != http.StatusOK || list.Metadata.ResourceVersion == "" {
		return errors.Join(err, fmt.Errorf("listing %s: %d %s", path, a.Status, http.StatusText(a.Status)))
	}
	changed() // for changes before the watch began
	q.Query = "watch=true&resourceVersion=" + list.Metadata.ResourceVersion
	q.Accept = "application/json;as=PartialObjectMetadata" + metadataOnly
	res, err := do(ctx, newRequest(ctx, q))
	if err != nil {
		return fmt.Errorf("watching %s: %w", path, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("watching %s: %d %s", path, res.StatusCode, http.StatusText(res.StatusCode))
	}
	for b := make([]byte, 4<<10); ; {
		n, err := res.Body.Read(b)
		if n > 0 {
			changed()
		}
		if err != nil {
			return nil //nolint:nilerr // the next watch begins with a call of changed
		}
	}
}

type local[L any] struct {
	hints chan struct{} // one slot: its documents may have changed
	known atomic.Pointer[L]
	fault atomic.Pointer[error] // of the last request. Nil means none yet
}

// Unread returns why a healthy local apiserver's documents cannot be read: the last good ones stay. Nil: all can be.
func (s *Sources[S, L]) Unread() (err error) {
	for name, l := range s.locals.Range {
		fault := l.(*local[L]).fault.Load()                              //nolint:forcetypeassert // no other is stored
		if fault != nil && *fault != nil && s.cfg.Ready(name.(string)) { //nolint:forcetypeassert // as above
			err = fmt.Errorf("%v: %w", name, *fault) // of several one: in the order of the map, as in the registry
		}
	}
	return err
}

// Release asks for a local apiserver's release, such as v1.36.3, and stores it, if servers have names.
func (c *Config) Release(ctx context.Context, server string, release *string) error {
	if server == "" {
		return nil
	}
	a, err := Get(ctx, c.Local(server), Question{Path: "/version", Accept: "application/json"})
	is := struct{ GitVersion *string }{release}
	if err == nil && json.Unmarshal(a.Body, &is) != nil {
		err = a.Unexpected()
	}
	return err
}

// Newer compares two releases, the newer one first.
func Newer(a, b string) int {
	if v, err := version.ParseSemantic(b); err == nil {
		if n, err := v.Compare(a); err == nil {
			return n
		}
	}
	return cmp.Compare(b, a)
}

// LocalChanged hints that a local apiserver's documents, or all if server is empty, may have changed. It never blocks.
func (s *Sources[S, L]) LocalChanged(server string) {
	for name, l := range s.locals.Range {
		if server == "" || server == name {
			latest.Wake(l.(*local[L]).hints) //nolint:forcetypeassert // nothing else is stored
		}
	}
}

// Locals returns the states of the local apiservers by name: nil of one that has not been asked yet.
func (s *Sources[S, L]) Locals() map[string]*L {
	all := make(map[string]*L)
	for name, l := range s.locals.Range {
		all[name.(string)] = l.(*local[L]).known.Load() //nolint:forcetypeassert // nothing else is stored
	}
	return all
}
