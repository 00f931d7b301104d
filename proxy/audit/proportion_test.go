package audit

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/proportion"
)

// Whatever is in a request, recording it costs in proportion to its size.
func TestInProportion(t *testing.T) {
	l := New(Config{Policy: evaluator(t, "omitManagedFields: true\nrules: [{level: RequestResponse}]"), Writer: io.Discard})
	var rows []proportion.Row
	record := func(r *Request, body []byte) any {
		e := l.Open(r)
		_, _ = io.Copy(io.Discard, e.Request(io.NopCloser(bytes.NewReader(body)), "application/json"))
		e.ResponseHead("application/json", "")
		for part := body; len(part) > 0; part = part[min(len(part), 100):] { // as frames bring it
			e.Response(part[:min(len(part), 100)])
		}
		e.Completed(200, "", "")
		for {
			select {
			case waiting := <-l.queue:
				waiting.place.Leave()
				waiting.bodies.Leave()
				l.backend.ProcessEvents(waiting.ev)
				l.lines.Reset()
				continue
			default:
			}
			return nil
		}
	}
	const first = `{"z":1,`
	for _, of := range []struct {
		name string
		n    int
		text func(n int) string
	}{
		{"fields", 500, proportion.Repeat(first, `"f@":1,`, "}")},
		{"one field again and again", 500, proportion.Repeat(first, `"f":1,`, "}")},
		{"items", 200, proportion.Repeat(first, `"items":[{"metadata":{"managedFields":[]}}],`, "}")},
		{"managed fields", 200, proportion.Repeat(first, `"metadata":{"managedFields":[{}]},`, "}")},
		{"blanks", 5000, proportion.Repeat("{", " ", `"z":1}`)},
		{"escapes", 500, proportion.Repeat(first, `"\u00e4":1,`, "}")},
		{"levels", 1000, func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }},
	} {
		rows = append(rows, proportion.Row{Name: "a body: " + of.name, N: of.n, Of: func(n int) (int, func() any) {
			body := []byte(of.text(n))
			return len(body), func() any { return record(widget("create"), body) }
		}})
	}
	for name, of := range map[string]func(n int, r *Request){
		"groups": func(n int, r *Request) {
			r.Attributes.User = &user.DefaultInfo{Groups: strings.Split(strings.Repeat("g,", n), ",")}
		},
		"sources":       func(n int, r *Request) { r.SourceIPs = strings.Split(strings.Repeat("192.0.2.1,", n), ",") },
		"a path":        func(n int, r *Request) { r.Path = strings.Repeat("/a", n) },
		"a User-Agent":  func(n int, r *Request) { r.UserAgent = strings.Repeat("a", n) },
		"an odd letter": func(n int, r *Request) { r.Path = strings.Repeat("\xff", n) },
	} {
		rows = append(rows, proportion.Row{Name: name, N: 1000, Of: func(n int) (int, func() any) {
			return n, func() any {
				r := widget("get")
				of(n, r)
				return record(r, nil)
			}
		}})
	}
	for _, s := range proportion.Heads() {
		if h := s.Of("", 1); strings.HasPrefix(h.Path, "?") {
			rows = append(rows, proportion.Row{Name: "a query: " + s.Name, N: s.Small, Of: func(n int) (int, func() any) {
				query := s.Of("", n).Path
				return n, func() any { return Mask(query) }
			}})
		}
	}
	proportion.Check(t, rows...)
}

// A body of tiny values becomes many times as large when it is read: others' wait meanwhile, whoever sends them.
func TestBodiesInMemory(t *testing.T) {
	l := New(Config{Policy: evaluator(t, "omitManagedFields: true\nrules: [{level: Request}]"), Writer: io.Discard})
	body := []byte(`{"managedFields":0,"items":[` + strings.Repeat(`{"a":1},`, maxBody/8-10) + `1]}`)
	var all sync.WaitGroup
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range 24 {
		all.Go(func() {
			r := widget("create")
			r.From.User = fmt.Sprint(i)
			e := l.Open(r)
			_, _ = io.Copy(io.Discard, e.Request(io.NopCloser(bytes.NewReader(body)), "application/json"))
			e.Completed(200, "", "")
			check.Same(t, "", e.ev.Annotations[annotateRequest], "why a body is missing")
		})
	}
	all.Wait()
	runtime.ReadMemStats(&after)
	grown := int64(after.HeapSys-before.HeapSys) >> 20
	check.Same(t, true, grown <= 400, "a bound for 24 bodies of 1 MiB: %d MB", grown)
}
