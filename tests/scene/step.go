package scene

import (
	"slices"
	"strconv"
	"time"

	"github.com/fairlead-proxy/fairlead/registry"
)

// Step takes a step of a story, in a bubble of its own time. It reports whether there is such a
// step:
//
//	claim <gv> <service>|local [group priority] [version priority]
//	trust <service>|<apiservice> [name]    verified by this TLS name from now on; another name is another connection
//	delete <apiservice>
//	report <apiservice> healthy|unhealthy
//	advance <duration>
//	asked <server> <least> <most> [path]   number of requests since the last step of this kind; it depends on jitter
func (s *Scene) Step(at string, words []string) bool {
	s.Helper()
	number := func(i, otherwise int) int {
		if i >= len(words) {
			return otherwise
		}
		n, err := strconv.Atoi(words[i])
		if err != nil {
			s.Fatalf("%s: %v", at, err)
		}
		return n
	}
	switch words[0] {
	case "claim":
		service := words[2]
		if service == "local" {
			service = ""
		}
		s.Claim(words[1], service, int32(number(3, 1000)), int32(number(4, 10)))
	case "trust":
		for name, o := range s.Input.APIServices {
			if o.Spec.Service != nil && (o.Spec.Service.Name == words[1] || name == words[1]) {
				o = o.DeepCopy()
				o.Annotations = nil
				if len(words) > 2 {
					o.Annotations = map[string]string{"fairlead.dev/tls-server-name": words[2]}
				}
				s.Input.APIServices[name] = o
			}
		}
		s.Build()
	case "delete":
		delete(s.Input.APIServices, words[1])
		s.Build()
	case "report":
		s.Report(words[1], words[2] == "healthy")
	case "advance":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			s.Fatalf("%s: %v", at, err)
		}
		time.Sleep(d) //nolint:forbidigo // stories run in a synctest bubble
	case "asked":
		asked := s.Questions(words[1])
		if len(words) > 4 {
			asked = slices.DeleteFunc(asked, func(path string) bool { return path != words[4] })
		}
		if n := len(asked); n < number(2, 0) || n > number(3, 0) {
			s.Errorf("%s: %s was asked %d times, want %s to %s", at, words[1], n, words[2], words[3])
		}
	default:
		return false
	}
	return true
}

// Report passes the result of a probe of an APIService's first endpoint to the table.
func (s *Scene) Report(name string, healthy bool) {
	s.Helper()
	at := slices.IndexFunc(s.Table().Entries(), func(e *registry.Entry) bool { return e.Name == name })
	if at < 0 {
		s.Fatalf("no entry %s", name)
	}
	e := s.Table().Entries()[at]
	r := registry.Report{Name: name, Backend: e.Backend, Address: e.Endpoints[0].Address, Health: registry.Healthy}
	if !healthy {
		r.Health, r.Reason, r.Message = registry.Unhealthy, registry.ReasonFailedDiscoveryCheck, "no"
	}
	s.Build(r)
}
