package audit

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/fairlead-proxy/fairlead/internal/bound"
)

func widget(verb string) *Request {
	return &Request{
		Attributes: authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: "bob", UID: "7", Groups: []string{"people"}, Extra: map[string][]string{"scope": {"all"}}},
			Verb: verb, ResourceRequest: true, APIGroup: "example.com", APIVersion: "v1", Namespace: "default", Resource: "widgets", Name: "one", Path: "/apis/example.com/v1/namespaces/default/widgets/one",
		},
		ID: "id-1", Path: "/apis/example.com/v1/namespaces/default/widgets/one", RawQuery: "pretty=1&access_token=abc", UserAgent: strings.Repeat("a", 2000),
		SourceIPs: []string{"10.0.0.1"}, Received: time.Now(), From: bound.Source{User: "bob"},
	}
}

func update(l *Log, by, body string) *Event {
	r := widget("update")
	r.Attributes.User, r.From = &user.DefaultInfo{Name: by}, bound.Source{User: by}
	e := l.Open(r)
	_, _ = io.Copy(io.Discard, e.Request(io.NopCloser(strings.NewReader(body)), "application/json"))
	return e
}

func from(u user.Info, address string) bound.Source {
	return bound.Caller(u, net.JoinHostPort(address, "1")).AnyConn()
}

// A user or stranger with more events than can be written loses only events of that source. A
// stranger is an address, or a subscriber's network of IPv6.
func TestLossesOfOneSource(t *testing.T) {
	const anonymous = user.Anonymous
	for _, tc := range []struct {
		noisy     string
		addresses []string
		other, at string
	}{
		{"bob", []string{"10.0.0.1"}, "somebody else", "10.0.0.1"},
		{anonymous, []string{"10.0.0.1"}, anonymous, "10.0.0.2"},
		{"", []string{"10.0.0.1"}, "", "10.0.0.2"},
		{anonymous, []string{"2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8::4"}, anonymous, "2001:db8:0:1::1"},
	} {
		l := atLevel(t, "Metadata", io.Discard)
		open := func(name, address string) *Event {
			r := widget("get")
			if r.Attributes.User = nil; name != "" {
				r.Attributes.User = &user.DefaultInfo{Name: name}
			}
			r.From = from(r.Attributes.User, address)
			return l.Open(r)
		}
		var noisy []*Event
		for _, address := range tc.addresses {
			noisy = append(noisy, open(tc.noisy, address))
		}
		for i := range 2 * queued {
			noisy[i%len(noisy)].Completed(200, "", "")
		}
		lost := testutil.ToFloat64(l.lost)
		open(tc.other, tc.at).Completed(200, "", "")
		if now := testutil.ToFloat64(l.lost); lost < queued || now != lost {
			t.Errorf("%q at %v: %v lost, then %v: an event of another source was lost, too", tc.noisy, tc.addresses, lost, now)
		}
	}
}
