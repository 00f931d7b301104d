package main

import (
	"context"
	"errors"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
)

// The values of --local-identity: how Fairlead passes a user that it has authenticated to the local
// apiserver.
const (
	identityFrontProxy  = "front-proxy"
	identityImpersonate = "impersonate"
)

func (o *options) addIdentityFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.localIdentity, "local-identity", identityFrontProxy, "How Fairlead passes the user to the local apiserver: front-proxy (X-Remote-* headers, with --proxy-client-cert-file) or impersonate (Impersonate-* headers, with the credential of the kubeconfig or the pod; for clusters run by somebody else). Bearer tokens that only the cluster can verify are forwarded unchanged in both cases.")
	fs.StringSliceVar(&o.refuseUsers, "impersonate-refuse-users", nil, "Users that are refused with 403 instead of being impersonated, whether they come by certificate, front proxy or JWT; a trailing * matches a prefix. Empty: system:serviceaccount:*, which covers Fairlead's own ServiceAccount; if Fairlead has another user name, add it. \"-\": none.")
	fs.StringSliceVar(&o.refuseGroups, "impersonate-refuse-groups", nil, "Groups whose members are refused with 403 instead of being impersonated; --as-group may not name them either. A trailing * matches a prefix. Empty: system:masters. \"-\": none.")
}

func (o *options) impersonates() bool { return o.localIdentity == identityImpersonate }

func (o *options) validateIdentity(fault func(string, ...any)) {
	switch {
	case o.localIdentity != identityFrontProxy && !o.impersonates():
		fault("--local-identity %q is neither front-proxy nor impersonate", o.localIdentity)
	case o.impersonates() && o.alone():
		fault("--local-identity=impersonate needs --kubeconfig: without it, --registry=dir: means that there is no local apiserver")
	case o.impersonates() && (o.authorization() == authzRBAC || o.authorization() == authzAlwaysAllow):
		fault("--local-identity=impersonate needs --authorization-mode=webhook or backend: only the cluster can decide who may impersonate whom (--as)")
	case !o.impersonates() && len(o.refuseUsers)+len(o.refuseGroups) > 0:
		fault("--impersonate-refuse-users and --impersonate-refuse-groups need --local-identity=impersonate: a front proxy may assert every user")
	}
}

// refused reads a list of users or groups not to impersonate. Empty means the default, "-" none.
func refused(flag []string, usual string) []string {
	switch {
	case len(flag) == 0:
		return []string{usual}
	case len(flag) == 1 && flag[0] == "-":
		return nil
	}
	return flag
}

// impersonate makes the authenticator verify JWTs itself, and pass known users to the local
// apiserver by impersonation.
func (d *door) impersonate(c *authn.Config) {
	if d.credential == nil {
		return
	}
	c.Impersonate, c.Issued = d.credential.Authorization, d.tokens.Issued
	c.RefuseUsers, c.RefuseGroups = refused(d.o.refuseUsers, "system:serviceaccount:*"), refused(d.o.refuseGroups, "system:masters")
	cluster := c.Review
	c.ReviewGeneration = d.tokens.Generation
	// Tokens of our issuers are never sent to the cluster, which may expect another audience.
	c.Review = func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		if d.tokens.Issued(token) {
			return d.tokens.Review(ctx, token)
		}
		return cluster(ctx, token)
	}
}

var (
	errNoCredential = errors.New("it has no credential to impersonate callers with")
	errNested       = errors.New("it already impersonates a user (as:): kube-apiserver accepts only one impersonated identity, the caller's")
)
