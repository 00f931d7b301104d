package scene

import (
	"compress/gzip"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/fairlead-proxy/fairlead/registry"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
)

// Tell tells the stories of testdata, each in a bubble of its own time. stage makes the scene of a
// story. The steps are its own, and:
//
//	claim <gv> <service>|local [group priority] [version priority]
//	trust <service>|<apiservice> [name]    verified by this TLS name from now on; another name is another connection
//	route <apiservice> [hidden|<service>…]         what the policy says of it: its further backends
//	unserve <service>                              its Service is deleted
//	delete <apiservice>
//	report <apiservice> healthy|unhealthy|gone
//	pass <duration>
//	asked <server> <least> <most> [path]   number of requests since the last step of this kind; it depends on jitter
//	<METHOD> <file> <path> [<field>=<value>…]   a response; $tag is the ETag of the last one
//	expect <file>
func Tell(t *testing.T, stage func(testing.TB) *Scene) {
	story.Tell(t, func(t *testing.T, script *story.Story) {
		synctest.Test(t, func(t *testing.T) {
			s := stage(t)
			for at, words := range script.Steps() {
				switch own := s.Own[words[0]]; {
				case own != nil:
					own(words[1:])
				case words[0] == "expect":
					script.Expect(s, at, words[1], s.Show())
				case words[0] == strings.ToUpper(words[0]):
					script.Expect(s, at, words[1], s.response(words[0], words[2], words[3:]))
				default:
					s.step(at, words)
				}
				synctest.Wait()
			}
		})
	})
}

// Main runs a package's tests without the lines of Kubernetes' own libraries, and checks that no goroutine is left.
func Main(m *testing.M) {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	must.Main(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// response describes the response to a request. A long body is cut; its sum tells whether two are the same.
func (s *Scene) response(method, path string, fields []string) string {
	header := http.Header{}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, "=")
		header.Add(name, strings.ReplaceAll(value, "$tag", s.tag))
	}
	w := s.ask(method, path, header)
	s.tag = strings.TrimPrefix(w.Header().Get("Etag"), "W/")
	body := w.Body.Bytes()
	if w.Header().Get("Content-Encoding") == "gzip" {
		body = must.Get(io.ReadAll(must.Get(gzip.NewReader(w.Body))(s)))(s)
		w.Header().Del("Content-Length") // another version of Go compresses it otherwise
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d\n", w.Code)
	must.Do(s, w.Header().Write(&b))
	if len(body) > 0 {
		fmt.Fprintf(&b, "\n%d bytes, CRC %08x:\n%s\n", len(body), crc32.ChecksumIEEE(body), Text(body))
	}
	return strings.ReplaceAll(b.String(), "\r\n", "\n")
}

// Text shows a body in a story.
func Text(body []byte) string {
	text := strings.TrimSpace(string(body))
	if len(text) > 2500 {
		text = text[:500] + "…"
	}
	if strings.ContainsFunc(text, func(r rune) bool { return r == utf8.RuneError || r < ' ' && r != '\n' }) {
		return strconv.Quote(text)
	}
	return text
}

func (s *Scene) step(at string, words []string) {
	s.Helper()
	number := func(i, otherwise int) int {
		if i >= len(words) {
			return otherwise
		}
		return must.Get(strconv.Atoi(words[i]))(s)
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
	case "route":
		s.Route(words[1], words[2:]...)
	case "unserve":
		delete(s.Input.Services, types.NamespacedName{Namespace: "x", Name: words[1]})
		s.Build()
	case "delete":
		delete(s.Input.APIServices, words[1])
		s.Build()
	case "report":
		s.Report(words[1], words[2])
	case "pass":
		s.Pass(must.Get(time.ParseDuration(words[1]))(s))
	case "asked":
		asked := s.Questions(words[1])
		if len(words) > 4 {
			asked = slices.DeleteFunc(asked, func(path string) bool { return path != words[4] })
		}
		if n := len(asked); n < number(2, 0) || n > number(3, 0) {
			s.Errorf("%s: %s was asked %d times, want %s to %s", at, words[1], n, words[2], words[3])
		}
	default:
		s.Fatalf("%s: unknown step %s", at, words[0])
	}
}

// Report passes the result of a probe of an APIService's first endpoint to the table.
func (s *Scene) Report(name, result string) {
	s.Helper()
	at := slices.IndexFunc(s.Table().Servers(), func(e *registry.Entry) bool { return e.Name == name })
	if at < 0 {
		s.Fatalf("no entry %s", name)
	}
	e := s.Table().Servers()[at]
	r := registry.Report{Name: name, Backend: e.Backend, Endpoint: registry.Endpoint{Address: e.Endpoints[0].Address, Health: registry.Healthy}}
	if result != "healthy" {
		r.Health, r.Reason, r.Message, r.Gone = registry.Unhealthy, registry.ReasonFailedDiscoveryCheck, "no", result == "gone"
	}
	s.Build(r)
}
