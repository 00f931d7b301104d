//go:build e2e

package soak

import (
	"context"
	"crypto/tls"
	"net/http"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

type caller struct {
	user   string
	groups []string // sorted
	// header is in each of the caller's requests. Callers with the same line share connections: all
	// with a token, and all behind the front proxy.
	header http.Header
	line   string
	tls    *tls.Config
	// trusted marks a front proxy's caller: forged identity headers would be believed.
	trusted bool
}

func (w *world) raiseCallers(ctx context.Context) {
	for _, user := range []string{"ann", "ben", "cyd", "dee"} {
		groups := []string{namespace, "crew-" + user}
		pair := must.Get(w.PKI.Client.Issue("soak-"+user, cluster.Leaf{User: user, Groups: groups}))(w.t)
		w.add(&caller{user: user, line: user, tls: w.clientTLS(pair)}, groups...)
	}
	nobody, core := w.clientTLS(cluster.Pair{}), w.kube[0].core
	for _, name := range []string{"eve", "fay", "gus", "hal"} {
		accounts := core.CoreV1().ServiceAccounts(namespace)
		must.Get(accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(w.t)
		// A day: longer than any soak.
		ask := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(86_400))}}
		token := must.Get(accounts.CreateToken(ctx, name, ask, metav1.CreateOptions{}))(w.t).Status.Token
		w.add(&caller{user: "system:serviceaccount:" + namespace + ":" + name, line: "tokens", tls: nobody, header: http.Header{"Authorization": {"Bearer " + token}}},
			"system:serviceaccounts", "system:serviceaccounts:"+namespace)
	}
	proxy := w.clientTLS(w.PKI.FrontProxyPair)
	for _, user := range []string{"ida", "jon", "kit", "lea"} {
		groups := []string{namespace, "crew-" + user}
		w.add(&caller{user: user, line: "proxied", tls: proxy, trusted: true, header: http.Header{"X-Remote-User": {user}, "X-Remote-Group": groups}}, groups...)
	}
}

func (w *world) add(c *caller, groups ...string) {
	c.groups = slices.Sorted(slices.Values(append(groups, "system:authenticated")))
	w.callers = append(w.callers, c)
}

func (w *world) clientTLS(pair cluster.Pair) *tls.Config {
	return suite.TLS(w.t, w.Endpoint(), cluster.Credentials{Pair: pair})
}
