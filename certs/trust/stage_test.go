package trust

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/logbook"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/scene"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
	"github.com/fairlead-proxy/fairlead/tests/pki"
	"github.com/fairlead-proxy/fairlead/tests/pki/cast"
)

// stage is a Trust with the APIServices, ConfigMaps, servers and connections of a story.
type stage struct {
	*Trust
	t          *testing.T
	generation uint64
	entries    []*registry.Entry
	backends   map[string]*registry.Backend // by APIService, and by the name under which one is kept
	cast       cast.Cast
	open       map[string]connection
	mu         sync.Mutex          // guards objects, which watches read, too
	objects    map[string]chan any // for the watch of each ConfigMap
	refused    string
	log        logbook.Book
	told       int // bytes of log
	metrics    *prometheus.Registry
}

func newStage(t *testing.T, cfg Config) *stage {
	t.Helper()
	s := &stage{t: t, backends: map[string]*registry.Backend{}, cast: cast.Cast{}, open: map[string]connection{}, objects: map[string]chan any{}, metrics: prometheus.NewPedanticRegistry()}
	cfg.Tables, cfg.Metrics = tablesOf(new(registry.Table)), s.metrics
	cfg.Renewed = func(name string) { fmt.Fprintf(&s.log, "renewed %s\n", name) }
	cfg.Logger = slog.New(slog.NewTextHandler(&s.log, nil))
	s.Trust = New(cfg)
	return s
}

func (s *stage) object(name string) chan any {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[name] == nil {
		s.objects[name] = make(chan any, 8)
	}
	return s.objects[name]
}

// faulty are the APIServices with a fault, or trusted by a replaced CA.
func (s *stage) faulty() string { return strings.Join(slices.Sorted(maps.Keys(s.Faults())), " ") }

// set applies a table in which an APIService has these fields, in a Backend of its own.
func (s *stage) set(name string, fields ...string) {
	e := &registry.Entry{Name: name, Settings: registry.Settings{CAOverlap: time.Minute}}
	next := registry.Backend{Namespace: "kube-system", Service: "metrics-server", Port: 443, ServerName: serverName}
	if i := slices.IndexFunc(s.entries, func(o *registry.Entry) bool { return o.Name == name }); i >= 0 {
		e.Settings, next = s.entries[i].Settings, *s.backends[name]
	}
	e.Backend = &next
	set := map[string]func(v string){
		"bundle":    func(v string) { next.CABundle = string(s.cast.Bundle(v)) },
		"from":      func(v string) { next.CAFrom = v },
		"namespace": func(v string) { next.Namespace = v },
		"name":      func(v string) { next.ServerName = v },
		"hosts":     func(v string) { next.URLs, next.ServerName = "https://"+v, v },
		"insecure":  func(v string) { next.Insecure = v == "true" },
		"owner":     func(v string) { next.Owner = v },
		"port":      func(string) { next.Port++ },
		"overlap":   func(v string) { e.Settings.CAOverlap = must.Get(time.ParseDuration(v))(s.t) },
		"like":      func(v string) { e.Backend = s.backends[v] }, // it has the Backend of another
		"local":     func(string) { e.Backend = nil },
	}
	story.Set(s.t, name, fields, set)
	s.backends[name] = e.Backend
	s.entries = append(slices.DeleteFunc(slices.Clone(s.entries), func(o *registry.Entry) bool { return o.Name == name }), e)
	s.table()
}

func (s *stage) table() {
	s.generation++
	s.apply(s.generation, s.entries)
}

// pair issues a certificate of a CA, for the backend's name unless the options differ.
func (s *stage) pair(text string) *pki.Pair {
	return s.cast.Pair(s.t, pki.Leaf{CommonName: "metrics", Names: []string{serverName}}, text)
}

// connection is guarded.
type connection struct {
	lost    <-chan struct{}
	release func()
}

// isLost reports whether its watches must end. That its chain has expired does not matter.
func (c connection) isLost() bool {
	for {
		select {
		case _, expired := <-c.lost:
			if !expired {
				return true
			}
		default:
			return false
		}
	}
}

// config returns what a target is dialled with: an APIService, all users of a Backend (*), or the
// local apiserver by an address.
func (s *stage) config(target string) (*tls.Config, error) {
	if _, address, local := strings.Cut(target, "@"); local {
		cfg := s.LocalTLS()
		cfg.ServerName = address
		return cfg, nil
	}
	name, all := strings.CutPrefix(target, "*")
	if all {
		return s.TLS("", s.backends[name])
	}
	return s.TLS(name, s.backends[name])
}

// dial performs a real handshake in memory with a server that has the pair.
func (s *stage) dial(target string, pair *pki.Pair) error {
	cfg, err := s.config(target)
	if err != nil {
		return err
	}
	_, _, err = cast.Shake(s.t, cfg, &tls.Config{Certificates: []tls.Certificate{pair.TLS()}})
	return err
}

// guard guards a connection on which the pair was presented.
func (s *stage) guard(target string, pair *pki.Pair) (c connection) {
	name, all := strings.CutPrefix(target, "*")
	switch {
	case target == "local":
		c.lost, c.release = s.LocalGuard(pair.Chain())
	case all:
		c.lost, c.release = s.Guard("", s.backends[name], pair.Chain())
	default:
		c.lost, c.release = s.Guard(name, s.backends[name], pair.Chain())
	}
	s.t.Cleanup(c.release)
	return c
}

// tablesOf has one table for ever.
func tablesOf(t *registry.Table) scene.TableFunc { return func() *registry.Table { return t } }
