package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
	"github.com/fairlead-proxy/fairlead/tests/kit/story"
	"github.com/fairlead-proxy/fairlead/tests/pki/cast"
)

// A story writes files and a ConfigMap, and says who is trusted and what is served then. For CAs,
// bundles and certificates see package cast.
//
//	text, bundle, pair <file> <content>    writes a file, or a pair's two
//	store <option>…           a new Store: serving=, sni= and proxy-client=PAIR, or CERT:KEY; an sni has the
//	                          names after @; client-ca=, requestheader-ca= and config=FILE; allowed=NAMES;
//	                          configmap=watched or =trusted
//	refused <text>            why there is none
//	reload                    all files are read, as Run does after a change
//	configmap [only] <key>=<value>…        the cluster's, with changes, or only what is named; or missing, unreadable
//	pass <duration>
//	user, front-proxy, cluster <certificate> [error]    nobody: neither verified nor an error
//	generation same|next      of client trust, since the last look
//	status <use> [text]       what is wrong
//	changed <use> <duration>  since it was put in force
//	taken <text>              of the config
//	reloads <use> <n> <n>     that succeeded, and failed
//	served <name> <cn>        to clients that send the name, or - for none
//	asks <subject>…           the CAs of which clients are asked for certificates
//	headers unknown|none|<file>
//	held <n>                  certificates that come from the ConfigMap
//	shown <use>=<subject>…    certificates in the status, in their order
//	metrics > <file>
//	check proxy-client, serving, bundle, backend …   see check; finds <text> for each finding, all of them
func TestStories(t *testing.T) {
	story.Tell(t, func(t *testing.T, tale *story.Story) {
		synctest.Test(t, func(t *testing.T) {
			s := &stage{t: t, tale: tale, dir: t.TempDir(), cast: cast.Cast{}}
			for at, words := range tale.Steps() {
				s.met(words[0])
				s.at = at
				words = append(words, "", "")
				must.Be(t, s.act(words) || s.look(words), "%s: unknown step %s", at, words[0])
			}
			s.met("the end")
		})
	})
}

// act takes a step that changes something.
func (s *stage) act(words []string) bool {
	switch words[0] {
	case "text":
		s.write(words[1], []byte(words[2]))
	case "bundle":
		s.write(words[1], s.cast.Bundle(words[2]))
	case "pair":
		must.Get2(s.pair(words[2]).WriteFiles(s.dir, words[1]))(s.t)
	case "store":
		s.Store, s.refusal = New(s.config(words[1 : len(words)-2]))
		s.generation = 0
		if s.refusal == nil {
			s.generation = s.Clients().Generation()
		}
	case "reload":
		for _, f := range s.followed {
			if len(f.files) > 0 {
				s.report(f)(f.load())
			}
		}
	case "configmap":
		f := s.value("authentication-configmap")
		switch words[1] {
		case "missing":
			s.report(f)(f.deliver(nil, fmt.Errorf("getting it: %w", fs.ErrNotExist)))
		case "unreadable":
			s.report(f)(f.deliver(nil, errors.New("the apiserver is away")))
		default:
			s.report(f)(f.deliver(s.configMap(words[1:len(words)-2]), nil))
		}
	case "pass":
		time.Sleep(must.Get(time.ParseDuration(words[1]))(s.t))
	case "check":
		s.check(words[1], words[2], words[3:len(words)-2])
	default:
		return false
	}
	return true
}

// look takes a step that checks something.
func (s *stage) look(words []string) bool {
	s.t.Helper()
	rest := strings.TrimSpace(strings.Join(words[2:], " "))
	switch words[0] {
	case "refused":
		want := strings.TrimSpace(strings.Join(words[1:], " "))
		check.Same(s.t, true, strings.Contains(s.shown(s.refusal), want), "%s: %v", s.at, s.refusal)
		s.refusal = nil
	case "user":
		s.verifies(s.Clients().VerifyUser, words[1], rest)
	case "front-proxy":
		s.verifies(s.Clients().VerifyFrontProxy, words[1], rest)
	case "cluster":
		s.verifies(s.Clients().VerifyInCluster, words[1], rest)
	case "generation":
		now := s.Clients().Generation()
		check.Same(s.t, words[1] == "next", now != s.generation, "%s: another generation", s.at)
		s.generation = now
	case "status":
		all := s.Status()
		got := all[slices.IndexFunc(all, func(st Status) bool { return st.Use == words[1] })].Err
		check.Same(s.t, true, strings.Contains(got, rest) && (got == "") == (rest == ""), "%s: %s: %q", s.at, words[1], got)
	case "changed":
		check.Same(s.t, must.Get(time.ParseDuration(words[2]))(s.t), time.Since(s.value(words[1]).changed), "%s: in force for", s.at)
	case "taken":
		check.Same(s.t, words[1], s.taken, "%s: taken", s.at)
	case "reloads":
		for i, outcome := range []string{"success", "failure"} {
			f := s.value(words[1])
			check.Same(s.t, words[2+i], fmt.Sprint(testutil.ToFloat64(s.reloads.WithLabelValues(f.use, f.source, outcome))), "%s: %s", s.at, outcome)
		}
	case "served":
		client := &tls.Config{InsecureSkipVerify: true, ServerName: strings.TrimPrefix(words[1], "-"), NextProtos: []string{"http/1.1", "h2"}}
		near, far := must.Get2(s.shake(client))(s.t)
		check.Same(s.t, words[2], near.PeerCertificates[0].Subject.CommonName, "%s: served", s.at)
		check.Same(s.t, "h2", far.NegotiatedProtocol, "%s: negotiated", s.at)
	case "asks":
		check.Same(s.t, strings.Fields(strings.Join(words[1:], " ")), s.asks(), "%s: clients are asked for certificates of", s.at)
	case "headers":
		s.headers(words[1])
	case "held":
		n := 0
		for _, st := range s.Status() {
			if strings.HasPrefix(st.Source, "ConfigMap ") {
				n += len(st.Certificates)
			}
		}
		check.Same(s.t, words[1], fmt.Sprint(n), "%s: certificates held by the ConfigMap", s.at)
	case "shown":
		var names []string
		for _, st := range s.Status() {
			for _, c := range st.Certificates {
				names = append(names, st.Use+"="+strings.ReplaceAll(c.Subject, " ", "_"))
			}
		}
		check.Same(s.t, strings.TrimSpace(strings.Join(words[1:], " ")), strings.Join(names, " "), "%s: certificates in the status", s.at)
	case "metrics":
		s.tale.Expect(s.t, s.at, words[2], s.scraped())
	case "finds":
		want := strings.TrimSpace(strings.Join(words[1:], " "))
		must.Be(s.t, len(s.findings) > 0 && strings.HasPrefix(s.findings[0].String(), want), "%s: found %q", s.at, s.findings)
		s.findings = s.findings[1:]
	default:
		return false
	}
	return true
}

// verifies checks whether a certificate's chain is trusted, or the error.
func (s *stage) verifies(verify func([]*x509.Certificate) ([][]*x509.Certificate, error), certificate, want string) {
	s.t.Helper()
	chain := s.chain(certificate)
	trusted, err := verify(chain)
	if want == "nobody" {
		want = ""
		trusted = append(trusted, chain)
	}
	check.Same(s.t, false, (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || (err == nil) != (len(trusted) == 1), "%s: %d chains, %v", s.at, len(trusted), err)
}

// scraped are the metrics. Fingerprints differ in each run.
func (s *stage) scraped() string {
	w := httptest.NewRecorder()
	promhttp.HandlerFor(s.metrics, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	text := regexp.MustCompile(`(?m)^#.*\n|fingerprint="[^"]*",`).ReplaceAllString(w.Body.String(), "")
	return strings.Join(slices.Sorted(strings.Lines(strings.ReplaceAll(text, s.dir+"/", ""))), "")
}
