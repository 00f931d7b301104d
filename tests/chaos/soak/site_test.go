//go:build e2e

package soak

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/servers/extension"
)

const (
	sitePort   = 8443                   // the port of every site. Each has its own address.
	eventEvery = 200 * time.Millisecond // the interval of a watch's events
	// receiptHeader carries a receipt, idHeader a request's name.
	receiptHeader = "X-Soak-Receipt"
	idHeader      = "X-Soak-Id"
)

// site is one endpoint: an extension server with invented objects. Each answer says which site it
// is from and what it received.
type site struct {
	name, ip string
	server   *extension.Server
	checker  *checker
	names    []string // in its certificate

	late atomic.Int32 // how the next writes end after their execution

	listed bool // as an endpoint of its Service; guarded by world.mu
	broken bool // on purpose; guarded by world.mu
}

// The values of site.late.
const (
	lateNot int32 = iota
	lateReset
	lateHang
)

func (w *world) newSite(g *group, service, ip string) *site {
	x := &site{name: service + "/" + ip, ip: ip, checker: w.checker, names: []string{service + "." + namespace + ".svc"}, listed: true}
	x.server = extension.Start(w.t, extension.Config{
		GroupVersions: []string{g.name + "/v1"}, Address: x.address(), Names: x.names, CA: g.ca, RequestHeaderCA: w.fronts,
		AllowedNames: []string{"front-proxy-client"}, RejectWith: http.StatusUnauthorized, Objects: 1, Record: -1, Wrap: x.wrap,
	})
	return x
}

func (x *site) address() string { return fmt.Sprintf("%s:%d", x.ip, sitePort) }

// widget is a site's answer, or an event of its watch.
type widget struct {
	Kind       string   `json:"kind"`
	APIVersion string   `json:"apiVersion"`
	Receipt    *receipt `json:"receipt"`
	Payload    string   `json:"payload,omitempty"`
}

// wrap answers requests for widgets; next answers the others.
func (x *site) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/apis/"), "/")
		if len(path) < 5 || path[4] != "widgets" {
			next.ServeHTTP(w, r)
			return
		}
		receipt := x.receipt(r, path[0]+"/"+path[1])
		if r.Method != http.MethodGet {
			x.execute(r, receipt)
		}
		w.Header().Set(receiptHeader, string(encode(receipt)))
		w.Header().Set("Content-Type", "application/json")
		flush := http.NewResponseController(w).Flush
		if r.URL.Query().Get("watch") != "" {
			watch(w, r, *receipt, flush)
			return
		}
		size, _ := strconv.Atoi(r.URL.Query().Get("size"))
		body := encode(widget{"Widget", receipt.GroupVersion, receipt, payload(receipt.ID, size)})
		if size%2 == 0 {
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		}
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusCreated)
		}
		if size%2 == 1 { // odd sizes come without Content-Length
			_ = flush()
		}
		_, _ = w.Write(body)
	})
}

func (x *site) receipt(r *http.Request, gv string) *receipt {
	c := &receipt{ID: r.Header.Get(idHeader), Server: x.name, GroupVersion: gv, User: strings.Join(r.Header.Values("X-Remote-User"), " and ")}
	c.Groups = slices.Sorted(slices.Values(r.Header.Values("X-Remote-Group")))
	for name := range r.Header {
		if name == "Authorization" || strings.HasPrefix(name, "Impersonate-") || strings.HasPrefix(name, "X_remote") || strings.HasPrefix(name, "X_Remote") {
			c.Leaked = name
		}
	}
	return c
}

// execute executes a write: after its body has arrived, and before the answer.
func (x *site) execute(r *http.Request, receipt *receipt) {
	body, err := io.ReadAll(http.MaxBytesReader(nil, r.Body, 4<<20))
	if err != nil {
		panic(http.ErrAbortHandler) // an incomplete body: nothing is executed
	}
	x.checker.executed(*receipt, sum(body))
	switch x.late.Load() {
	case lateHang:
		<-r.Context().Done()
		fallthrough
	case lateReset:
		panic(http.ErrAbortHandler)
	}
}

// watch sends numbered events until the client leaves.
func watch(w io.Writer, r *http.Request, event receipt, flush func() error) {
	for {
		event.Seq++
		if _, err := w.Write(append(encode(widget{"Event", "", &event, eventPayload(&event)}), '\n')); err != nil || flush() != nil {
			return
		}
		pause(r.Context(), eventEvery)
		if r.Context().Err() != nil {
			return
		}
	}
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // only strings and numbers: cannot fail
	}
	return b
}

func eventPayload(r *receipt) string { return payload(r.ID, 100*(r.Seq%20)) }

// payload is n bytes that are unique to this request's answer.
func payload(id string, n int) string {
	if id == "" {
		return ""
	}
	return strings.Repeat(id+".", n/(len(id)+1)+1)[:n]
}

func sum(body []byte) string {
	h := sha256.Sum256(body)
	return fmt.Sprintf("%x", h[:8])
}
