package discovery

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/scene"
	"github.com/fairlead-proxy/fairlead/tests/story"
)

var update = flag.Bool("update", false, "rewrite the expectations of the stories")

// A story is a script of steps, one a line, in a bubble of its own time:
//
//	local <gv>=<resource>,… …           what the local apiserver serves from now on
//	claim <gv> <service>|local [group priority] [version priority]
//	trust <service> <name>              the Service's backend is verified by another TLS name from now on
//	delete <apiservice>
//	backend <service> serves <gv>=… …   by aggregated discovery
//	backend <service> legacy <code> <gv>=… …
//	backend <service> hangs|refuses|garbage|huge|status <code>
//	report <apiservice> healthy|unhealthy
//	open [stale-after]                  Discovery starts
//	advance <duration>
//	asked <service> <least> <most>      number of requests since the last step of this kind; it depends on jitter
//	expect <file>
func TestStories(t *testing.T) {
	story.Tell(t, *update, func(t *testing.T, script *story.Story) {
		synctest.Test(t, func(t *testing.T) { tell(t, script) })
	})
}

func tell(t *testing.T, script *story.Story) {
	s := newStage(t)
	for at, words := range script.Steps() {
		if words[0] == "expect" {
			script.Expect(t, at, words[1], s.show())
			continue
		}
		s.step(at, words)
		synctest.Wait()
	}
}

func (s *stage) step(at string, words []string) {
	s.Helper()
	switch words[0] {
	case "local":
		s.Set(scene.Home, serving(listOf(words[1:]...)))
	case "claim":
		service, group, version := words[2], int64(1000), int64(10)
		if len(words) > 3 {
			group, _ = strconv.ParseInt(words[3], 10, 32)
		}
		if len(words) > 4 {
			version, _ = strconv.ParseInt(words[4], 10, 32)
		}
		if service == "local" {
			service = ""
		}
		s.Claim(words[1], service, int32(group), int32(version))
	case "trust":
		for name, o := range s.Input.APIServices {
			if o.Spec.Service != nil && o.Spec.Service.Name == words[1] {
				o = o.DeepCopy()
				o.Annotations = map[string]string{"fairlead.dev/tls-server-name": words[2]}
				s.Input.APIServices[name] = o
			}
		}
		s.Build()
	case "delete":
		delete(s.Input.APIServices, words[1])
		s.Build()
	case "backend":
		s.Set(words[1], behaviour(words[2:]))
	case "report":
		health := registry.Unhealthy
		if words[2] == "healthy" {
			health = registry.Healthy
		}
		s.report(words[1], health)
	case "open":
		cfg := Config{}
		if len(words) > 1 {
			cfg.StaleAfter, _ = time.ParseDuration(words[1])
		}
		s.open(cfg)
	case "advance":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			s.Fatalf("%s: %v", at, err)
		}
		time.Sleep(d)
	case "asked":
		least, _ := strconv.Atoi(words[2])
		most, _ := strconv.Atoi(words[3])
		if n := len(s.Questions(words[1])); n < least || n > most {
			s.Errorf("%s: %s was asked %d times, want %d to %d", at, words[1], n, least, most)
		}
	default:
		s.Fatalf("%s: unknown step %s", at, words[0])
	}
}

func behaviour(words []string) http.HandlerFunc {
	switch words[0] {
	case "serves":
		return serving(listOf(words[1:]...))
	case "legacy":
		code, _ := strconv.Atoi(words[1])
		return legacyServing(code, words[2:]...)
	case "hangs":
		return hanging
	case "garbage":
		return saying(http.StatusOK, aggregatedJSON, []byte(`{"items":[{"versions":"none"}]}`))
	case "huge":
		return saying(http.StatusOK, aggregatedJSON, bytes.Repeat([]byte(" "), 33<<20))
	case "status":
		code, _ := strconv.Atoi(words[1])
		return saying(code, "text/plain", nil)
	}
	return nil // refuses
}

// show describes what clients see, a line per group-version, and the status that operators see.
func (s *stage) show() string {
	s.Helper()
	w := s.get("/apis", http.Header{"Accept": {aggregatedJSON}})
	if w.Code != http.StatusOK {
		return fmt.Sprintf("%d %s\n", w.Code, bytes.TrimSpace(w.Body.Bytes()))
	}
	list := &apidiscoveryv2.APIGroupDiscoveryList{}
	must.Do(s, json.Unmarshal(w.Body.Bytes(), list))
	var b strings.Builder
	for _, g := range list.Items {
		for _, v := range g.Versions {
			fmt.Fprintf(&b, "%s/%s %s", g.Name, v.Version, v.Freshness)
			for _, r := range v.Resources {
				b.WriteString(" " + r.Resource)
			}
			b.WriteByte('\n')
		}
	}
	for _, st := range s.d.Status() {
		fmt.Fprintf(&b, "status %s %s", st.Name, st.Reason)
		switch age := time.Since(st.Confirmed); {
		case st.Confirmed.IsZero():
		case age <= time.Minute+time.Second: // with any jitter
			b.WriteString(" confirmed")
		default:
			b.WriteString(" confirmed long ago")
		}
		b.WriteByte('\n')
	}
	return b.String()
}
