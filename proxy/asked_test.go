package proxy

import (
	"crypto/tls"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/fairlead-proxy/fairlead/registry/policy"
	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// A list is limited if the apiserver takes it for one, by its own code.
func TestUnlimited(t *testing.T) {
	for _, query := range []string{
		"", "limit", "limit=", "limit=0", "limit=00", "limit=%2B0", "limit=-0", "limit=-1", "limit=-9223372036854775808", "limit=1", "limit=500", "limit=%35", "li%6dit=5", "limit=5&limit=0",
		"limit=0&limit=5", "limit=%zz&limit=5", "limit=5;limit=0", "Limit=5", "limit%00=5", "+limit=5", "resourceVersion", "resourceVersion=", "resourceVersion=0", "resourceVersion=&resourceVersion=5",
		"resource%56ersion=5", "resourceversion=5", "resourceVersion=%", "a=b&&limit=5", "continue=x", "continue=x&resourceVersion=0", "continue=&resourceVersion=0",
		"continue=x&resourceVersion=0&limit=5", "resourceVersion=5&resourceVersionMatch=Exact", "resourceVersion=5&resourceVersionMatch=NotOlderThan", "limit=10000", "resourceVersion=+",
	} {
		var o metainternalversion.ListOptions
		q := (&url.URL{RawQuery: query}).Query()
		if err := metainternalversionscheme.ParameterCodec.DecodeParameters(q, metav1.SchemeGroupVersion, &o); err != nil {
			continue // the apiserver refuses it
		}
		cached := o.ResourceVersion != "" && o.Continue == "" && o.ResourceVersionMatch != metav1.ResourceVersionMatchExact
		check.Same(t, !cached && o.Limit <= 0, unlimited(new(policy.Request), query), "without a limit: %s", query)
	}
	for _, query := range []string{"limit=10001", "limit=9223372036854775807", "limit=99999999999999999999"} {
		check.Same(t, true, unlimited(new(policy.Request), query), "without a limit that anybody has in mind: %s", query)
	}
}

// Rules see whom the apiserver's filters impersonate: the older, or the newer one that constrains.
func TestImpersonated(t *testing.T) {
	s, w := newAPIServer(), rand.New(rand.NewPCG(1, 1))
	of := func(all ...string) string { return all[w.IntN(len(all))] }
	for range 2000 {
		r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/pods", nil))(t)
		r.TLS = new(tls.ConnectionState)
		r.Header.Set("Authorization", "Bearer token-of-boss")
		for range 1 + w.IntN(2) {
			r.Header.Add("Impersonate-User", of("jane", "system:anonymous", "system:serviceaccount:a:b", "system:serviceaccount:a", "system:serviceaccount::b", "system:node:a", "system:node:", "system:node:A_", " jane"))
		}
		for range w.IntN(4) {
			r.Header.Add("Impersonate-Group", of("g", "system:masters", "system:authenticated", "system:unauthenticated", "", "system:nodes", "system:serviceaccounts"))
		}
		for range w.IntN(2) {
			r.Header.Add(of("Impersonate-Uid", "Impersonate-Extra-A"), of("x", ""))
		}
		got := headOf(r, time.Time{}).impersonated()
		groups := func(u user.Info) []string {
			all := slices.Clone(u.GetGroups())
			slices.Sort(all)
			return slices.Compact(all)
		}
		node := strings.HasPrefix(got.GetName(), "system:node:") && r.Header["Impersonate-Group"] == nil // a rule for nodes matches, whichever filter the apiserver has
		for _, a := range s.asked(r) {
			check.Same(t, a.user.GetName(), got.GetName(), "user of %v", r.Header)
			want := groups(a.user)
			check.Same(t, true, slices.Equal(want, groups(got)) || node && slices.Equal(append(want, user.NodesGroup), groups(got)), "groups %q, those of the apiserver are %q: %v", groups(got), want, r.Header)
		}
	}
}
