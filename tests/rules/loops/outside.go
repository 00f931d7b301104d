package loops

import (
	"fmt"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// harmless are packages whose functions never block, and cost in proportion to their input, except those of costly.
var harmless = strings.Fields(`
	bytes cmp context crypto/sha256 encoding/base64 encoding/binary encoding/hex errors hash hash/maphash iter maps math math/bits math/rand/v2 net/netip net/url
	slices strconv strings sync/atomic time unicode unicode/utf16 unicode/utf8 unique
	golang.org/x/net/http/httpguts golang.org/x/net/http2 golang.org/x/net/http2/hpack
	k8s.io/apimachinery/pkg/api/errors k8s.io/apiserver/pkg/authentication/user
	go.opentelemetry.io/otel/attribute go.opentelemetry.io/otel/trace`) // a span has its own mutex; ended ones are queued, or dropped

// costly are functions of harmless packages that may not be called.
var costly = map[string]string{
	"time.Sleep":                       "waits",
	"net/url.ParseQuery":               "makes a map of all parameters",
	"(*net/url.URL).Query":             "makes a map of all parameters",
	"(net/url.Values).Encode":          "sorts all parameters",
	"golang.org/x/net/http2.NewFramer": "is for connections",
}

// known are further functions that may be called, each with the reason.
var known = map[string]string{
	"error.Error":            "a text; where it is ours, it is followed",
	"fmt.Errorf":             "once a failure, in proportion to its text",
	"(syscall.Errno).Error":  "a text",
	"(*net.OpError).Error":   "a text",
	"os.NewSyscallError":     "makes an error",
	"net.JoinHostPort":       "joins texts",
	"net.SplitHostPort":      "splits a text, once a connection",
	"net.ParseIP":            "reads a short text",
	"(net.IP).String":        "a text",
	"net/http.StatusText":    "a switch",
	"net.Addr.String":        "a text",
	"crypto/tls.VersionName": "a switch",
	"(net/http.Header).Add":  "a look-up",

	"(*sync.Pool).Get": "this processor's list",
	"(*sync.Pool).Put": "this processor's list",
	"(*sync.Map).Load": "a look-up",
	"(*k8s.io/apimachinery/pkg/labels.Requirement).Key":      "a field",
	"(*k8s.io/apimachinery/pkg/labels.Requirement).Operator": "a field",
	"k8s.io/apimachinery/pkg/labels.Selector.Matches":        "looks labels up, as many as the administrator's policy has",
	"(*sync.Map).Store":       "its mutex is held for a look-up",
	"(*sync.Map).Delete":      "its mutex is held for a look-up",
	"(*sync.Map).LoadOrStore": "its mutex is held for a look-up",
	"(*sync.Cond).Broadcast":  "never waits",
	"(*sync.Once).Do":         "what it runs is followed",
	"k8s.io/utils/ptr.Deref":  "a choice",
	"(*sync.WaitGroup).Add":   "counts",

	"syscall.RawSyscall":                      "reads and writes sockets that do not block",
	"syscall.RawSyscall6":                     "polls epoll with a timeout of 0",
	"syscall.EpollCtl":                        "never waits",
	"syscall.Recvfrom":                        "with MSG_DONTWAIT",
	"syscall.Shutdown":                        "never waits",
	"syscall.Close":                           "of a socket without SO_LINGER",
	"(*os.File).SyscallConn":                  "reads a field",
	"golang.org/x/sys/unix.GetsockoptTCPInfo": "never waits",

	"k8s.io/apiserver/pkg/authentication/serviceaccount.SplitUsername":               "reads a short text",
	"k8s.io/apiserver/pkg/authentication/serviceaccount.MakeGroupNames":              "two texts",
	"golang.org/x/sync/semaphore.NewWeighted":                                        "a struct",
	"golang.org/x/time/rate.NewLimiter":                                              "a struct",
	"(*golang.org/x/time/rate.Limiter).AllowN":                                       "its mutex is held for arithmetic",
	"(*golang.org/x/time/rate.Limiter).TokensAt":                                     "its mutex is held for arithmetic",
	"(k8s.io/apiserver/pkg/apis/audit.Level).Less":                                   "compares",
	"(*k8s.io/api/authentication/v1.UserInfo).Size":                                  "adds lengths",
	"k8s.io/apiserver/pkg/audit.PolicyRuleEvaluator.EvaluatePolicyRule":              "reads each of the operator's rules once",
	"k8s.io/apimachinery/pkg/apis/meta/v1.NewMicroTime":                              "a struct",
	"k8s.io/apiserver/pkg/authentication/group.NewAuthenticatedGroupAdder":           "a struct",
	"k8s.io/apiserver/pkg/authentication/authenticator.Request.AuthenticateRequest":  "the group adder's, which adds a group",
	"(go.opentelemetry.io/otel/propagation.TraceContext).Inject":                     "a text",
	"(go.opentelemetry.io/otel/propagation.TraceContext).Extract":                    "reads two fields",
	"github.com/prometheus/client_golang/prometheus.Counter.Inc":                     "adds",
	"github.com/prometheus/client_golang/prometheus.Counter.Add":                     "adds",
	"github.com/prometheus/client_golang/prometheus.Observer.Observe":                "adds",
	"(*github.com/prometheus/client_golang/prometheus.CounterVec).WithLabelValues":   "its mutex is held for a look-up",
	"(*github.com/prometheus/client_golang/prometheus.HistogramVec).WithLabelValues": "its mutex is held for a look-up",
}

// elsewhere are functions that run what they are given on another goroutine.
var elsewhere = map[string]bool{"(*sync.WaitGroup).Go": true, "time.AfterFunc": true, "context.AfterFunc": true}

// outside checks a call of a function of another module.
func (w *walk) outside(m moment, site ssa.CallInstruction, f *ssa.Function) {
	w.used[name(f)] = true
	if elsewhere[name(f)] {
		return
	}
	w.callbacks(m, site)
	if why := verdict(f); why != "" {
		w.violates(m, site.Pos(), "calls "+name(f)+", which "+why)
	}
}

// verdict returns why a function of another module may not be called. Empty means that it may.
func verdict(f *ssa.Function) string {
	path := ""
	if o := f.Origin(); o != nil {
		f = o
	}
	if o := f.Object(); o != nil && o.Pkg() != nil {
		path = o.Pkg().Path()
	}
	switch why, isCostly := costly[name(f)]; {
	case isCostly:
		return why
	case slices.Contains(harmless, path) || known[name(f)] != "":
		return ""
	}
	return "is not listed in outside.go"
}

// outsideInterface checks a call of an interface that other modules may implement.
func (w *walk) outsideInterface(m moment, site ssa.CallInstruction, targets []*ssa.Function) {
	c := site.Common()
	called := fmt.Sprintf("%s.%s", c.Value.Type(), c.Method.Name())
	w.used[called] = true
	if n, ok := types.Unalias(c.Value.Type()).(*types.Named); ok && n.Obj().Pkg() != nil {
		if path := n.Obj().Pkg().Path(); slices.Contains(harmless, path) || strings.HasPrefix(path, module) && len(targets) > 0 {
			return
		}
	}
	if len(targets) == 0 {
		w.callbacks(m, site)
	}
	if known[called] == "" {
		w.violates(m, site.Pos(), "calls "+called+", which is not listed in outside.go")
	}
}

// callbacks follows the functions that are passed to another module.
func (w *walk) callbacks(m moment, site ssa.CallInstruction) {
	for _, a := range site.Common().Args {
		if isFunc(a) && !w.follow(m, site, a) {
			w.violates(m, site.Pos(), "passes on a function that is not known")
		}
	}
}

// unknown checks a call of a function value of which the graph knows nothing.
func (w *walk) unknown(m moment, site ssa.CallInstruction) {
	w.callbacks(m, site)
	if !w.follow(m, site, site.Common().Value) {
		w.violates(m, site.Pos(), "calls a function that is not known")
	}
}

// follow follows a function value. It reports false if its functions are not known.
func (w *walk) follow(m moment, site ssa.CallInstruction, x ssa.Value) bool {
	fns, ok := w.p.functions(x, 0)
	for _, f := range fns {
		if w.p.ours[f] {
			w.arrive(situation{fn: f, loop: m.loop, held: m.now}, m.situation, site.Pos())
		} else {
			ok = ok && verdict(f) == ""
		}
	}
	return ok
}
