package extension_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/extension"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/pki"
)

const widgets = "/apis/widgets.example.com/v1/namespaces/default/widgets"

// run runs f over both protocols.
func run(t *testing.T, cfg extension.Config, f func(t *testing.T, s *extension.Server, c *http.Client)) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			t.Parallel()
			s := extension.Start(t, cfg)
			f(t, s, client(t, s, proto, nil))
		})
	}
}

func client(t *testing.T, s *extension.Server, proto string, pair *pki.Pair) *http.Client {
	t.Helper()
	tlsConfig := s.TLS()
	tlsConfig.NextProtos = nil
	if pair != nil {
		tlsConfig.Certificates = []tls.Certificate{pair.TLS()}
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(proto == "HTTP/1.1")
	protocols.SetHTTP2(proto == "HTTP/2.0")
	transport := &http.Transport{TLSClientConfig: tlsConfig, Protocols: protocols, DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// request returns a response and its whole body.
func request(ctx context.Context, c *http.Client, method, url string, body io.Reader, header ...string) (*http.Response, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, nil, err
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	res, err := c.Do(r)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	return res, b, err
}

func ask(t *testing.T, c *http.Client, method, url string, body io.Reader, header ...string) (*http.Response, []byte) {
	t.Helper()
	res, b, err := request(t.Context(), c, method, url, body, header...)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	return res, b
}

func TestObjects(t *testing.T) {
	run(t, extension.Config{}, func(t *testing.T, s *extension.Server, c *http.Client) {
		steps := []struct {
			method, path, body string
			code               int
			want               string
		}{
			{"GET", widgets + "/widget-007", "", 200, `"name":"widget-007"`},
			{"GET", widgets + "/none", "", 404, `"reason":"NotFound"`},
			{"POST", widgets, `{"metadata":{"name":"new"},"spec":{"payload":"p"}}`, 201, `"apiVersion":"widgets.example.com/v1"`},
			{"POST", widgets, `{"metadata":{"name":"new"}}`, 409, "already exists"},
			{"POST", widgets, `{"metadata":`, 400, "not an object"},
			{"POST", widgets, strings.Repeat("x", 4<<20+1), 413, "too large"},
			{"PUT", widgets + "/new", `{"spec":{"payload":"q"}}`, 200, `"payload":"q"`},
			{"PUT", widgets + "/none", `{}`, 404, "NotFound"},
			{"GET", widgets + "/new", "", 200, `"payload":"q"`},
			{"PATCH", widgets + "/new", "{}", 405, "MethodNotAllowed"},
			{"DELETE", widgets + "/new", "", 200, `"status":"Success"`},
			{"GET", widgets + "/new", "", 404, "NotFound"},
			{"GET", "/apis/widgets.example.com/v1/namespaces/other/widgets", "", 200, `"items":[]`},
			{"GET", "/apis/widgets.example.com/v2/widgets", "", 404, "no such version"},
			{"GET", "/apis/none.example.com/v1/widgets", "", 404, "no such group"},
			{"GET", "/anything", "", 404, "could not find"},
		}
		for _, step := range steps {
			res, b := ask(t, c, step.method, s.URL()+step.path, strings.NewReader(step.body))
			if res.StatusCode != step.code || !strings.Contains(string(b), step.want) {
				t.Errorf("%s %s: %d %.200s, want %d with %s", step.method, step.path, res.StatusCode, b, step.code, step.want)
			}
		}
	})
}

func TestSizes(t *testing.T) {
	run(t, extension.Config{}, func(t *testing.T, s *extension.Server, c *http.Client) {
		_, one := ask(t, c, "GET", s.URL()+widgets+"/widget-000", nil)
		if len(one) < 900 || len(one) > 1200 {
			t.Errorf("an object has %d bytes, want about 1 KB", len(one))
		}
		res, all := ask(t, c, "GET", s.URL()+"/apis/widgets.example.com/v1/widgets", nil)
		if len(all) < 90_000 || len(all) > 120_000 || res.ContentLength != int64(len(all)) {
			t.Errorf("a list has %d bytes (Content-Length %d), want about 100 KB", len(all), res.ContentLength)
		}
		var list struct{ Items []json.RawMessage }
		if err := json.Unmarshal(all, &list); err != nil || len(list.Items) != 100 {
			t.Errorf("%d items: %v", len(list.Items), err)
		}
	})
}

func TestEcho(t *testing.T) {
	run(t, extension.Config{}, func(t *testing.T, s *extension.Server, c *http.Client) {
		body := bytes.Repeat([]byte("0123456789abcdef"), 3<<20/16)
		r, _ := http.NewRequestWithContext(t.Context(), "POST", s.URL()+widgets+"/w/echo", io.MultiReader(bytes.NewReader(body)))
		r.Trailer = http.Header{"X-Check": {"yes"}}
		res := must.Get(c.Do(r))(t)
		defer res.Body.Close()
		back, err := io.ReadAll(res.Body)
		if err != nil || !bytes.Equal(back, body) {
			t.Errorf("%d of %d bytes echoed: %v", len(back), len(body), err)
		}
		if got := res.Trailer.Get("X-Check"); got != "yes" {
			t.Errorf("trailer %q, want yes", got)
		}
		if rec := last(t, s); rec.Body != int64(len(body)) || rec.Trailer.Get("X-Check") != "yes" {
			t.Errorf("recorded %d bytes, trailer %v", rec.Body, rec.Trailer)
		}
	})
}

// last returns the newest request once it is complete.
func last(t *testing.T, s *extension.Server) extension.Request {
	t.Helper()
	for t.Context().Err() == nil {
		if all := s.Requests(0); len(all) > 0 && all[len(all)-1].Done {
			return all[len(all)-1]
		}
	}
	t.Fatal("no complete request")
	return extension.Request{}
}

func TestRecord(t *testing.T) {
	ca := pki.NewCA("front")
	pair := ca.Issue(pki.Leaf{CommonName: "front-proxy-client"})
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			s := extension.Start(t, extension.Config{})
			c := client(t, s, proto, pair)
			target := widgets + "/a%2Fb?b=2&a=%31;x&b=1&%zz"
			ask(t, c, "GET", s.URL()+target, nil, "X-Twice", "one", "X-Twice", "two", "X_Under", "u", "Authorization", "Bearer t")
			rec := last(t, s)
			if rec.Target != target || rec.Proto != proto || rec.Method != "GET" || rec.Host != s.Addr() || rec.Status != 404 {
				t.Errorf("recorded %+v", rec)
			}
			if rec.PeerName != "front-proxy-client" || rec.PeerSerial != pair.Certificate.SerialNumber.Text(16) || rec.Conn != 1 {
				t.Errorf("peer %q %s, connection %d", rec.PeerName, rec.PeerSerial, rec.Conn)
			}
			if got := rec.Header["X-Twice"]; len(got) != 2 || rec.Header.Get("X_under") != "u" {
				t.Errorf("header %v", rec.Header)
			}
			var twice []string
			for _, f := range rec.Fields {
				if strings.EqualFold(f.Name, "x-twice") {
					twice = append(twice, f.Value)
				}
			}
			if strings.Join(twice, ",") != "one,two" {
				t.Errorf("fields %v", rec.Fields)
			}
			s.Forget()
			if n := len(s.Requests(0)); n != 0 {
				t.Errorf("%d requests after Forget", n)
			}
		})
	}
}

func TestRecordIsBounded(t *testing.T) {
	s := extension.Start(t, extension.Config{Record: 3})
	c := client(t, s, "HTTP/2.0", nil)
	for range 10 {
		ask(t, c, "GET", s.URL()+"/healthz", nil)
	}
	if all := s.Requests(0); len(all) != 3 || all[2].Seq != 10 {
		t.Errorf("%d requests kept, want the last 3: %+v", len(all), all)
	}
	if rest := s.Requests(9); len(rest) != 1 {
		t.Errorf("%d requests since 9, want 1", len(rest))
	}
}

func TestDiscovery(t *testing.T) {
	const v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
	for _, legacy := range []bool{false, true} {
		cfg := extension.Config{GroupVersions: []string{"a.test/v1", "a.test/v1beta1", "b.test/v1"}, LegacyDiscovery: legacy}
		run(t, cfg, func(t *testing.T, s *extension.Server, c *http.Client) {
			kind := map[bool]string{false: "APIGroupDiscoveryList", true: "APIGroupList"}[legacy]
			tests := []struct{ path, accept, want string }{
				{"/apis", v2, `"kind":"` + kind + `"`},
				{"/apis", "application/json", `"kind":"APIGroupList"`},
				{"/apis/a.test", "", `"preferredVersion":{"groupVersion":"a.test/v1","version":"v1"}`},
				{"/apis/b.test/v1", "", `"name":"widgets/console"`},
				{"/openapi/v2", "", `"test.a.v1beta1.Widget"`},
				{"/openapi/v3", "", `"apis/b.test/v1"`},
				{"/openapi/v3/apis/a.test/v1", "", `"test.a.v1.Widget"`},
			}
			for _, tt := range tests {
				res, b := ask(t, c, "GET", s.URL()+tt.path, nil, "Accept", tt.accept)
				if res.StatusCode != 200 || !json.Valid(b) || !strings.Contains(string(b), tt.want) {
					t.Errorf("%s: %d %.300s, want %s", tt.path, res.StatusCode, b, tt.want)
				}
				res, b = ask(t, c, "GET", s.URL()+tt.path, nil, "Accept", tt.accept, "If-None-Match", res.Header.Get("ETag"))
				if res.StatusCode != 304 || len(b) != 0 {
					t.Errorf("%s with its ETag: %d with %d bytes", tt.path, res.StatusCode, len(b))
				}
			}
		})
	}
}

func TestWatch(t *testing.T) {
	run(t, extension.Config{Objects: 1}, func(t *testing.T, s *extension.Server, c *http.Client) {
		r, _ := http.NewRequestWithContext(t.Context(), "GET", s.URL()+widgets+"?watch=true", nil)
		res := must.Get(c.Do(r))(t)
		defer res.Body.Close()
		events := json.NewDecoder(res.Body)
		next := func(want string) {
			t.Helper()
			var e struct {
				Type   string
				Object json.RawMessage
			}
			if err := events.Decode(&e); err != nil || !strings.HasPrefix(e.Type+" "+string(e.Object), want) {
				t.Fatalf("event %s %.100s (%v), want %s", e.Type, e.Object, err, want)
			}
		}
		next("ADDED {") // the existing object
		s.Emit()
		next("MODIFIED {}")
		ask(t, c, "DELETE", s.URL()+widgets+"/widget-000", nil)
		next("DELETED {")
		if n := s.Stats().Watchers; n != 1 {
			t.Errorf("%d watchers", n)
		}
	})
}

func TestWatchTimeout(t *testing.T) {
	run(t, extension.Config{}, func(t *testing.T, s *extension.Server, c *http.Client) {
		begin := time.Now()
		ask(t, c, "GET", s.URL()+widgets+"?watch=1&resourceVersion=5&timeoutSeconds=1", nil)
		if d := time.Since(begin); d < time.Second || d > 10*time.Second {
			t.Errorf("the watch ended after %v, want 1s", d)
		}
	})
}

func TestRequestHeaderCA(t *testing.T) {
	front, stranger := pki.NewCA("front"), pki.NewCA("front")
	leaf := pki.Leaf{CommonName: "front-proxy-client"}
	tests := []struct {
		name   string
		pair   *pki.Pair
		reject int
		code   int
	}{
		{"vouched for", front.Issue(leaf), 401, 200},
		{"through an intermediate", front.Intermediate("between").Issue(leaf), 401, 200},
		{"no certificate", nil, 401, 401},
		{"another CA", stranger.Issue(leaf), 403, 403},
		{"another name", front.Issue(pki.Leaf{CommonName: "somebody"}), 401, 401},
		{"served nevertheless", nil, 0, 200},
	}
	for _, tt := range tests {
		for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
			t.Run(tt.name+" "+proto, func(t *testing.T) {
				s := extension.Start(t, extension.Config{
					RequestHeaderCA: front.Pool(), AllowedNames: []string{"front-proxy-client"}, RejectWith: tt.reject,
				})
				res, _ := ask(t, client(t, s, proto, tt.pair), "GET", s.URL()+widgets, nil)
				if verified := last(t, s).Verified; res.StatusCode != tt.code || verified != (tt.reject != 0 && tt.code == 200) {
					t.Errorf("status %d, verified %t, want %d", res.StatusCode, verified, tt.code)
				}
			})
		}
	}
}

func TestBrokenGroupVersion(t *testing.T) {
	if _, err := extension.New(extension.Config{GroupVersions: []string{"v1"}}); err == nil {
		t.Error("a server with a broken group-version started")
	}
}

func TestWrap(t *testing.T) {
	own := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/own" {
				_, _ = io.WriteString(w, "own")
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	run(t, extension.Config{Wrap: own}, func(t *testing.T, s *extension.Server, c *http.Client) {
		for path, want := range map[string]string{"/own": "own", "/healthz": "ok"} {
			if _, body := ask(t, c, "GET", s.URL()+path, nil); string(body) != want {
				t.Errorf("%s: %q, want %q", path, body, want)
			}
		}
	})
}
