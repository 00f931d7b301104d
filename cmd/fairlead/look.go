package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/advice"
	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/needs"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/pages"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/front"
	"github.com/fairlead-proxy/fairlead/registry"
)

// failed returns a check that fails with an error, or passes without one.
func failed(err error, users, what, advice string) answer.Check {
	if err == nil {
		return answer.Check{}
	}
	return answer.Check{Status: needs.Failed, Users: users, Message: what + err.Error(), Advice: advice}
}

// lastOf returns the check that the last of what o notes has ended well.
func lastOf(name string, o *needs.Outcome, what, advice string) needs.Check {
	return needs.Check{Name: name, Look: func(time.Time) answer.Check {
		return failed(o.Err(time.Time{}), "", what, advice)
	}}
}

// lookServers returns which local apiservers are unhealthy, and what cannot be read from those that are healthy.
func lookServers(servers []registry.Endpoint, unread error) answer.Check {
	bad, last := pages.Unhealthy(servers)
	back := func(e registry.Endpoint) bool { return time.Since(e.Since) < 10*time.Second } // it is read again by then
	if bad == len(servers) || slices.ContainsFunc(servers, back) {
		unread = nil
	}
	also := failed(unread, "", "not all can be read, the last state is used: ", "see that kube-apiserver's log, "+
		"whether large answers reach this machine, and what --local-apiservers-from looks up")
	if bad == 0 {
		return also
	}
	said := strings.TrimSuffix(pages.Brief(last.Message)+"; "+also.Message, "; ")
	return failed(fmt.Errorf("%s: %s", last.Address, said), "",
		fmt.Sprintf("%d of %d local apiservers are unhealthy and get no requests: ", bad, len(servers)),
		cmp.Or(advice.For(last.Message), "see that kube-apiserver's log"))
}

// noted notes how reviews end. A refused token was reviewed.
func noted[A, B, C any](ends *needs.Outcome,
	review func(context.Context, A) (B, C, error)) func(context.Context, A) (B, C, error) {
	return func(ctx context.Context, a A) (B, C, error) {
		b, c, err := review(ctx, a)
		if errors.Is(err, authn.ErrUnauthenticated) {
			ends.Note(nil)
		} else if !errors.Is(err, context.Canceled) { // the caller may go
			ends.Note(err)
		}
		return b, c, err
	}
}

// lookReviews returns whether reviews are answered. passed is when the local apiserver last answered about our rights.
func (s *server) lookReviews(passed time.Time) answer.Check {
	const do = "see the checks rights, kubeconfig and local-apiserver, and the local apiserver's own log"
	return cmp.Or(
		failed(s.requests.Err(passed), "Users without system:masters get 503 from extension servers and for discovery",
			"SubjectAccessReviews fail: ", do),
		failed(s.tokens.Err(passed), "Users with tokens get 503 from extension servers", "TokenReviews fail: ", do))
}

// lookIssuers returns what Faults of package tokens says. While the former configuration stays, its users are served.
func lookIssuers(keys, dropped error) answer.Check {
	const do = "correct issuer.url or certificateAuthority there, or have this machine reach it: it is asked again"
	return cmp.Or(
		failed(keys, "Users with tokens of an issuer get 503", "--authentication-config: ", do),
		failed(dropped, "", "the new --authentication-config is not active, the former one is: ", do))
}

// faultOf returns what is wrong with a followed certificate, bundle or file. Nil means nothing.
func faultOf(st *certs.Status, now time.Time) error {
	valid := func(c trust.Certificate) bool { return !now.Before(c.NotBefore) && !now.After(c.NotAfter) }
	bad := slices.IndexFunc(st.Certificates, func(c trust.Certificate) bool { return !valid(c) })
	switch {
	case bad >= 0 && (st.Chain || !slices.ContainsFunc(st.Certificates, valid)): // of a bundle one will do
		c := st.Certificates[bad]
		if now.Before(c.NotBefore) {
			return fmt.Errorf("the certificate of %s is not valid before %s",
				c.Subject, c.NotBefore.Format(time.RFC3339))
		}
		return fmt.Errorf("the certificate of %s has expired (%s)", c.Subject, c.NotAfter.Format(time.RFC3339))
	case st.Err != "": // the last good one is used
		return errors.New(st.Err)
	}
	return nil
}

// lookConfigMap adds the ConfigMap's content to what is known about the right to read it. Never read: that is a gate's.
func (s *server) lookConfigMap(found answer.Check) answer.Check {
	if _, known := s.clusterNames(); found.Failed() || !known {
		return found
	}
	name := "ConfigMap " + authConfigMap().String() + ": "
	return cmp.Or(
		failed(s.unfit(), "Users with certificates get 503, and all users from extension servers", name,
			"set --requestheader-username-headers=X-Remote-User and --requestheader-group-headers=X-Remote-Group "+
				"of every kube-apiserver"),
		failed(s.distrusted(time.Now()),
			"Users with certificates get 503, their writes 401, and all users 503 from extension servers",
			name+"the cluster does not take the proxy client certificate: ", "have it signed by the cluster's "+
				"request-header CA (kubeadm: front-proxy-ca), with one of its --requestheader-allowed-names"))
}

// seldomLook looks again only after a while: at certificates, to read or verify, and at descriptors, to count.
func seldomLook[T any](look func(time.Time) T) func(time.Time) T {
	found, at := *new(T), time.Time{}
	return func(now time.Time) T {
		if now.Sub(at) >= 10*time.Second {
			found, at = look(now), now
		}
		return found
	}
}

// pairs are the faults of our own pairs and bundles. Only the goroutine of the checks writes it.
type pairs struct {
	serving    atomic.Pointer[error]
	kubeconfig answer.Check
}

// judge returns what is wrong with our own pairs and bundles. Without a valid serving certificate nobody is served.
func (p *pairs) judge(all []certs.Status, now time.Time) (found answer.Check) {
	const refused = "Users with certificates are refused"
	const distrusted = "Clients do not trust a certificate of this replica"
	users := map[string]string{ // :: use → what they notice if it is not valid
		"serving": distrusted, "sni": distrusted, "client-ca": refused,
		"proxy-client":     "Users with certificates, and requests to extension servers, are refused",
		"requestheader-ca": "Users of front proxies are refused", "egress-client": "Extension servers get no requests",
	}
	var serving *error
	p.kubeconfig = answer.Check{}
	valid := false // a serving certificate
	for _, st := range all {
		fault, notice, do := faultOf(&st, now), users[st.Use], "renew it: it is followed"
		if fault != nil && fault.Error() == st.Err {
			notice, do = "", "correct it: it is followed, and the last good one is used until then"
		}
		switch {
		case fault != nil && notice == distrusted && now.After(st.Certificates[0].NotAfter): // else clocks may differ
			serving = cmp.Or(serving, &fault)
		case st.Use == "serving" || st.Use == "sni":
			valid = true
		}
		switch {
		case fault == nil:
		case st.Use == "kubeconfig":
			p.kubeconfig = failed(fault, "", "", do)
		case found.Users == "":
			found = failed(fault, notice, st.Use+" ("+st.Source+"): ", do)
		}
	}
	if valid {
		serving = nil
	}
	p.serving.Store(serving)
	return found
}

// lookKubeconfig adds the kubeconfig itself to what is known about its credential.
func (s *server) lookKubeconfig(found answer.Check) answer.Check {
	switch file := s.pairs.kubeconfig; {
	case !file.Failed():
	case found.Failed():
		found.Message += ": " + file.Message
	default:
		found, found.Message = file, s.o.kubeconfig+": "+file.Message
	}
	return found
}

const nearly = .9 // of a bound counts as all of it: a tenth is left to find out why

// lookDescriptors counts those in use: 20 ms for 100,000. Their highest number says nothing: there may be holes.
func (s *server) lookDescriptors(time.Time) answer.Check {
	const do = "raise --max-connections and the limit of open files (LimitNOFILE of systemd), " +
		"or find out which clients hold so many connections: see fairlead_connections"
	if max(s.ports.front.Use(), s.ports.admin.Use()) > nearly {
		return failed(errors.New("nearly all connections that a port may have are open"), "", "", do)
	}
	f, err := os.Open("/proc/self/fd")
	if errors.Is(err, fs.ErrNotExist) {
		return answer.Check{Status: needs.Unknown, Message: "only Linux tells how many file descriptors are in use"}
	}
	if err != nil {
		return failed(err, "New clients wait", "no file can be opened: ", do)
	}
	defer f.Close()
	names, err := f.Readdirnames(-1) // os.ReadDir would sort them
	const few = 16                   // that a few clients need
	limit := float64(front.Descriptors(1))
	if used := float64(len(names)); err == nil && used > min(nearly*limit, limit-few) {
		return failed(fmt.Errorf("nearly all of %.0f file descriptors are in use", limit), "", "", do)
	}
	return answer.Check{}
}

func (s *server) lookMemory(time.Time) answer.Check {
	const do = "raise the container's memory limit, " +
		"or find out which clients hold so much: see fairlead_memory_held_bytes and the access log"
	if limit := s.held.Limit(); float64(s.held.Held()) > nearly*float64(limit) {
		return failed(fmt.Errorf("connections hold more than nine tenths of the %d bytes that they may", limit),
			"", "", do)
	}
	if limit := debug.SetMemoryLimit(-1); float64(readHeap().live) > nearly*float64(limit) {
		return failed(fmt.Errorf("more than nine tenths of the limit of %d bytes are in use", limit), "", "", do)
	}
	return answer.Check{}
}
