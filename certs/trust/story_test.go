package trust

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
)

const serverName = "metrics-server.kube-system.svc"

// watch follows a ConfigMap until ctx ends.
func (s *stage) watch(ctx context.Context, ref types.NamespacedName, changed func(map[string][]byte, error)) error {
	fmt.Fprintf(&s.log, "watching %s\n", ref)
	defer func() {
		time.Sleep(time.Millisecond) // so that the watch that replaces it is logged first
		fmt.Fprintf(&s.log, "watch of %s ends\n", ref)
	}()
	for {
		select {
		case o := <-s.object(ref.String()):
			switch o := o.(type) {
			case map[string][]byte:
				changed(o, nil)
			case error:
				changed(nil, o)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// do takes one step of a story.
func (s *stage) do(at string, words ...string) {
	s.t.Helper()
	words = append(words, "")
	switch words[0] {
	case "set": // APIService field=value...
		s.set(words[1], words[2:len(words)-1]...)
	case "drop": // APIService
		s.entries = slices.DeleteFunc(slices.Clone(s.entries), func(o *registry.Entry) bool { return o.Name == words[1] })
		s.table()
	case "late": // an older table, without entries
		s.apply(s.generation-1, nil)
	case "keep": // APIService name: its Backend, under another name
		s.backends[words[2]] = s.backends[words[1]]
	case "dial": // target certificate [reason], which is "refused" if crypto/tls has verified it
		err, got := s.dial(words[1], s.pair(words[2])), ""
		if err != nil {
			got = "refused"
			s.refused += err.Error() + "\n"
		}
		if e, ok := errors.AsType[*Error](err); ok {
			got = e.Reason()
		}
		check.Same(s.t, words[3], got, "%s: dialling: %v", at, err)
	case "open": // connection target certificate
		s.open[words[1]] = s.guard(words[2], s.pair(words[3]))
	case "close": // connection
		s.open[words[1]].release()
		s.open[words[1]].release() // it may be called more than once
	case "held", "lost": // connection...
		for _, c := range words[1 : len(words)-1] {
			check.Same(s.t, words[0] == "lost", s.open[c].isLost(), "%s: connection %s is lost", at, c)
		}
	case "expired": // connection..., since it was last held
		for _, c := range words[1 : len(words)-1] {
			check.Same(s.t, 1, len(s.open[c].lost), "%s: values for connection %s", at, c)
		}
	case "unguarded": // nothing is left of closed connections
		for _, b := range append(s.both(), s.local) {
			check.Same(s.t, false, b.guarding(), "%s: a closed connection is still guarded for %q", at, b.name)
		}
	case "configmap": // namespace/name key=bundle... | missing | unreadable
		switch data := map[string][]byte{}; words[2] {
		case "missing":
			s.object(words[1]) <- fmt.Errorf("getting it: %w", fs.ErrNotExist)
		case "unreadable":
			s.object(words[1]) <- errors.New("the apiserver is away")
		default:
			for _, field := range words[2 : len(words)-1] {
				key, names, _ := strings.Cut(field, "=")
				data[key] = s.cast.Bundle(names)
			}
			s.object(words[1]) <- data
		}
	case "local": // bundle [refused]
		check.Same(s.t, words[2] == "refused", s.LocalBundle(s.cast.Bundle(strings.TrimPrefix(words[1], "-"))) != nil, "%s: refused", at)
	case "faulty": // APIService...: those with a fault, or trusted by a replaced CA
		check.Same(s.t, strings.Join(words[1:len(words)-1], " "), s.faulty(), "%s: faulty", at)
	case "pass": // duration
		time.Sleep(must.Get(time.ParseDuration(words[1]))(s.t))
	default:
		s.t.Fatalf("%s: unknown step %s", at, words[0])
	}
}

// shown is what an operator sees. Fingerprints differ in each run.
func (s *stage) shown(what string) (text string) {
	switch what {
	case "refused":
		text, s.refused = s.refused, ""
	case "log":
		all := s.log.String()
		text, s.told = regexp.MustCompile(`(?m)^time=\S+ `).ReplaceAllString(all[s.told:], ""), len(all)
	case "status":
		all := s.Status()
		for _, one := range all {
			for _, certs := range [][]Certificate{one.CAs, one.Leaves} {
				for i := range certs {
					certs[i].Fingerprint = ""
				}
				slices.SortStableFunc(certs, func(a, b Certificate) int {
					return cmp.Or(a.NotAfter.Compare(b.NotAfter), cmp.Compare(a.Subject, b.Subject))
				})
			}
		}
		text = string(must.Get(yaml.Marshal(map[string]any{"status": all, "faults": s.Faults()}))(s.t))
	case "metrics":
		w := httptest.NewRecorder()
		promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequestWithContext(s.t.Context(), http.MethodGet, "/", nil))
		lines := slices.Sorted(strings.Lines(regexp.MustCompile(`(?m)^# HELP.*\n|fingerprint="[^"]*",`).ReplaceAllString(w.Body.String(), "")))
		text = strings.Join(lines, "")
	default:
		s.t.Fatalf("unknown: %s", what)
	}
	return text
}

// Each story changes what a running Trust follows, and dials servers. "status > file" and the like
// compare all that an operator sees.
func TestStories(t *testing.T) {
	story.Tell(t, func(t *testing.T, tale *story.Story) {
		synctest.Test(t, func(t *testing.T) {
			var s *stage
			stop := func() {}
			for at, words := range tale.Steps() {
				switch n := len(words); {
				case words[0] == "anew": // what follows has a Trust of its own
					stop()
					s = newStage(t, Config{})
					s.cfg.Watch = s.watch
					stop = must.Run(t, s.Run)
					synctest.Wait()
				case n == 3 && words[1] == ">":
					tale.Expect(t, at, words[2], s.shown(words[0]))
				default:
					s.do(at, words...)
					synctest.Wait()
				}
			}
		})
	})
}

// guarding reports whether a connection that was verified here is open.
func (b *backend) guarding() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.guards) > 0
}
