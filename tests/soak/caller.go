package main

import (
	"context"
	"crypto/tls"
	"net/http"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
)

// caller is one who asks, and how he shows who he is.
type caller struct {
	user   string
	groups []string // sorted
	// header is in each of his requests, line is whose connections he uses: callers with a token
	// share one, and so do those whom a front proxy names.
	header http.Header
	line   string
	tls    *tls.Config
	// trusted says that he may say who he is: a forged header would be believed.
	trusted bool
}

func (w *world) raiseCallers(ctx context.Context) error {
	for _, raise := range []func(context.Context) error{w.raiseCertificates, w.raiseTokens, w.raiseProxied} {
		if err := raise(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) add(c *caller, groups ...string) {
	c.groups = slices.Sorted(slices.Values(append(groups, "system:authenticated")))
	w.callers = append(w.callers, c)
}

func (w *world) raiseCertificates(context.Context) error {
	for _, user := range []string{"ann", "ben", "cyd", "dee"} {
		groups := []string{namespace, "crew-" + user}
		pair, err := w.PKI.Client.Issue("soak-"+user, cluster.Leaf{User: user, Groups: groups})
		if err != nil {
			return err
		}
		c, err := w.clientTLS(pair)
		if err != nil {
			return err
		}
		w.add(&caller{user: user, line: user, tls: c}, groups...)
	}
	return nil
}

func (w *world) raiseTokens(ctx context.Context) error {
	c, err := w.clientTLS(cluster.Pair{})
	if err != nil {
		return err
	}
	for _, name := range []string{"eve", "fay", "gus", "hal"} {
		var token string
		err := w.api(ctx, func(ctx context.Context, k clients) error {
			accounts := k.core.CoreV1().ServiceAccounts(namespace)
			_, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			if err := present(err); err != nil {
				return err
			}
			// A day: longer than any soak.
			r, err := accounts.CreateToken(ctx, name, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(86_400))}}, metav1.CreateOptions{})
			if err == nil {
				token = r.Status.Token
			}
			return err
		})
		if err != nil {
			return err
		}
		w.add(&caller{user: "system:serviceaccount:" + namespace + ":" + name, line: "tokens", tls: c, header: http.Header{"Authorization": {"Bearer " + token}}},
			"system:serviceaccounts", "system:serviceaccounts:"+namespace)
	}
	return nil
}

func (w *world) raiseProxied(context.Context) error {
	c, err := w.clientTLS(w.PKI.FrontProxyPair)
	if err != nil {
		return err
	}
	for _, user := range []string{"ida", "jon", "kit", "lea"} {
		groups := []string{namespace, "crew-" + user}
		w.add(&caller{user: user, line: "proxied", tls: c, trusted: true, header: http.Header{"X-Remote-User": {user}, "X-Remote-Group": groups}}, groups...)
	}
	return nil
}
