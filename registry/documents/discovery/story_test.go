package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
)

// The steps of these stories, beside those of scene.Tell:
//
//	local <gv>=<resource>,… …           what the local apiserver serves from now on
//	server <name> <release> <gv>=… …    what one of several local apiservers serves; without a release: refuses, or hangs
//	peers <gv>=… …                      what the next servers list besides, unless they are asked not to
//	leave <name>                        that server is none any more
//	unready <name>                      that server is not healthy
//	known <name> …                      those that get clients
//	address <host>:<port>               its own, from the next local on
//	alone                               there is no local apiserver
//	own <gv>=… …                        this process serves groups itself
//	backend <service> serves <gv>=… …   by aggregated discovery; a resource may be <name>:<kind>[:cluster][:<verb>…]
//	backend <service> legacy <code> <gv>=… …  a resource may be <name>:cluster
//	backend <service> hangs|refuses|garbage|huge|status <code>
//	backend <service> silent <gv>=… …   lists nothing in /apis
//	backend <service> stale <gv> …      is an aggregator whose own servers are away
//	open [<stale-after>]                Discovery starts
func TestStories(t *testing.T) {
	scene.Tell(t, func(tb testing.TB) *scene.Scene {
		s, address, peers := newStage(tb), []string(nil), []string(nil)
		s.Show = s.show
		s.Own = map[string]func([]string){
			"local": func(words []string) { s.Set(scene.Home, serving(listOf(words...), address...)) },
			"server": func(words []string) {
				if !slices.Contains(s.servers, words[0]) {
					s.servers = append(s.servers, words[0])
				}
				if len(words) < 3 {
					s.Set(words[0], map[bool]http.HandlerFunc{true: hanging}[len(words) == 2])
					return
				}
				own := serving(listOf(words[2:]...), words[0])
				all := serving(listOf(slices.Concat(words[2:], peers)...), words[0])
				s.Set(words[0], func(w http.ResponseWriter, r *http.Request) {
					switch {
					case r.URL.Path == "/version":
						fmt.Fprintf(w, `{"gitVersion":%q}`, words[1])
					case strings.Contains(r.Header.Get("Accept"), "profile=nopeer"):
						own(w, r)
					default:
						all(w, r)
					}
				})
			},
			"peers":   func(words []string) { peers = words },
			"leave":   func(words []string) { s.leave[words[0]]() },
			"unready": func(words []string) { s.unready.Store(&words[0]) },
			"known": func(words []string) {
				check.Same(s, words, slices.Sorted(slices.Values(*s.known.Load())), "who gets clients")
			},
			"address": func(words []string) { address = words },
			"alone":   func([]string) { s.alone = true },
			"own": func(words []string) {
				s.own = true
				s.Set("own", legacyServing(http.StatusNotFound, words...))
			},
			"backend": func(words []string) { s.Set(words[0], behaviour(words[1:])) },
			"open": func(words []string) {
				var cfg Config
				if len(words) > 0 {
					cfg.StaleAfter = must.Get(time.ParseDuration(words[0]))(s)
				}
				s.open(cfg)
			},
		}
		return s.Scene
	})
}

// each runs f for each named local apiserver, until that leaves.
func (s *stage) each(ctx context.Context, f func(context.Context, string)) error {
	var running sync.WaitGroup
	for _, name := range s.servers {
		ctx, cancel := context.WithCancel(ctx)
		s.leave[name] = cancel
		running.Go(func() { f(ctx, name) })
	}
	running.Wait()
	return ctx.Err()
}

func behaviour(words []string) http.HandlerFunc {
	switch words[0] {
	case "serves":
		return serving(listOf(words[1:]...))
	case "legacy":
		code, _ := strconv.Atoi(words[1])
		return legacyServing(code, words[2:]...)
	case "silent":
		own, empty := legacyServing(http.StatusNotFound, words[1:]...), serving(listOf())
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/apis" {
				empty(w, r)
				return
			}
			own(w, r)
		}
	case "stale":
		list := listOf(words[1:]...)
		for i := range list.Items {
			list.Items[i].Versions[0].Freshness = apidiscoveryv2.DiscoveryFreshnessStale
		}
		return serving(list)
	case "hangs":
		return hanging
	case "garbage":
		return saying(http.StatusOK, aggregatedJSON, []byte(`{"items":[{"versions":"none"}]}`))
	case "huge":
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000000000")
			w.WriteHeader(http.StatusOK)
		}
	case "status":
		code, _ := strconv.Atoi(words[1])
		return saying(code, "text/plain", nil)
	}
	return nil // refuses
}

// show describes what clients see, a line per group-version, and the status that operators see.
func (s *stage) show() string {
	s.Helper()
	w := s.Get("/apis", http.Header{"Accept": {aggregatedJSON}})
	if w.Code != http.StatusOK {
		return fmt.Sprintf("%d %s\n", w.Code, bytes.TrimSpace(w.Body.Bytes()))
	}
	list := &apidiscoveryv2.APIGroupDiscoveryList{}
	must.Do(s, json.Unmarshal(w.Body.Bytes(), list))
	var b strings.Builder
	current := make(map[string]bool) // :: APIService → whether its group-version is
	for _, g := range list.Items {
		for _, v := range g.Versions {
			current[v.Version+"."+g.Name] = v.Freshness == apidiscoveryv2.DiscoveryFreshnessCurrent
			fmt.Fprintf(&b, "%s/%s %s", g.Name, v.Version, v.Freshness)
			for _, r := range v.Resources {
				b.WriteString(" " + r.Resource)
			}
			b.WriteByte('\n')
		}
	}
	for _, st := range s.d.Status() {
		name, _, _ := strings.Cut(st.Name, "/")
		check.Same(s, false, st.Stale && current[name], "%s is Stale in a group-version that is not", st.Name)
		fmt.Fprintf(&b, "status %s %d %s", st.Name, st.Resources, st.Reason)
		switch age := time.Since(st.Confirmed); {
		case st.Confirmed.IsZero():
		case age <= time.Minute+time.Second: // with any jitter
			b.WriteString(" confirmed")
		default:
			b.WriteString(" confirmed long ago")
		}
		if st.Conflicts != nil {
			fmt.Fprintf(&b, ", conflicts %s", st.Conflicts)
		}
		b.WriteByte('\n')
	}
	var only []string
	if by := s.only.Load(); by != nil {
		for what, of := range *by {
			slices.Sort(of)
			only = append(only, fmt.Sprintf("only %s %v\n", strings.Trim(what.GroupVersion().String()+"/"+what.Resource, "/"), of))
		}
	}
	slices.Sort(only)
	return b.String() + strings.Join(only, "")
}
