package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authn/tokens"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/authz/rbac"
)

// makeTokens makes the token authenticator that works without the local apiserver. It returns the
// files that feed it.
func (d *door) makeTokens() []certs.File {
	d.tokens = tokens.New(tokens.Config{Judged: !d.o.alone() && !d.o.impersonates(), Logger: d.log})
	if d.o.alone() || d.o.impersonates() {
		d.loop("tokens", d.tokens.Run)
	}
	var files []certs.File
	if d.o.tokenFile != "" {
		files = append(files, certs.File{Use: "token-auth-file", Path: d.o.tokenFile, Take: d.tokens.TakeTokens})
	}
	if d.o.authConfig != "" {
		files = append(files, certs.File{Use: "authentication-config", Path: d.o.authConfig, Take: d.tokens.TakeConfig})
	}
	return files
}

func (o *options) validateTokens(fault func(string, ...any)) {
	checkReadable(fault, "--token-auth-file", o.tokenFile)
	checkReadable(fault, "--authentication-config", o.authConfig)
	if o.tokenFile != "" && !o.alone() {
		fault("--token-auth-file is for --registry=dir: or etcd: without --kubeconfig: a local apiserver verifies tokens itself")
	}
}

// anonymous decides which requests without credentials are accepted: the configuration file
// decides, or else the flag. As in kube-apiserver, only the file's content at the start counts.
func (d *door) anonymous(c *authn.Config) error {
	c.Anonymous = d.o.anonymous
	configured, allowed, paths := d.tokens.Anonymous()
	if !configured {
		return nil
	}
	if d.o.anonymousSet {
		return cli.Usage(errors.New("--anonymous-auth cannot be set when the file of --authentication-config has an anonymous section"))
	}
	c.Anonymous, c.AnonymousPaths = allowed, paths
	return nil
}

// makeAuthn makes the authenticator. The local apiserver verifies tokens; without one, the token
// files do.
func (d *door) makeAuthn() (*authn.Authenticator, error) {
	c := authn.Config{
		VerifyClient: d.certs.Clients().VerifyUser, VerifyFrontProxy: d.certs.Clients().VerifyFrontProxy, Generation: d.certs.Clients().Generation,
		RequestHeaders: authn.HeaderNames{
			Username: d.o.usernameHeaders, UID: d.o.uidHeaders, Group: d.o.groupHeaders, ExtraPrefix: d.o.extraHeaderPrefixes,
		}, Target: d.targetNames, TokenTTL: orNone(d.o.tokenTTL), Logger: d.log, Metrics: d.metrics,
	}
	if err := d.anonymous(&c); err != nil {
		return nil, err
	}
	if d.o.alone() {
		c.Review, c.ReviewGeneration = d.tokens.Review, d.tokens.Generation
	} else {
		client, err := authenticationv1.NewForConfig(d.client)
		if err != nil {
			return nil, fmt.Errorf("making client of the local apiserver: %w", err)
		}
		if c.Review, err = authn.TokenReview(client); err != nil {
			return nil, err
		}
	}
	d.impersonate(&c)
	who, err := authn.New(c)
	if err != nil {
		return nil, cli.Usage(err)
	}
	return who, nil
}

// The values of --authorization-mode, spelled as kube-apiserver's where it has the same.
const (
	authzWebhook     = "webhook"
	authzBackend     = "backend"
	authzRBAC        = "RBAC"
	authzAlwaysAllow = "AlwaysAllow"
)

// authorization returns the mode in force. The default is the local apiserver if there is one, else
// the directory's roles.
func (o *options) authorization() string {
	switch {
	case o.authzMode != "":
		return o.authzMode
	case o.alone():
		return authzRBAC
	}
	return authzWebhook
}

func (o *options) validateAuthorization(fault func(string, ...any)) {
	switch mode := o.authorization(); mode {
	case authzWebhook:
		if o.alone() {
			fault("--authorization-mode=webhook needs --kubeconfig: there is no local apiserver to ask")
		}
	case authzRBAC, authzAlwaysAllow:
		if o.registry.dir == "" && !o.alone() {
			fault("--authorization-mode=%s needs --registry=dir:PATH: only the local apiserver evaluates a cluster's own roles (webhook)", mode)
		}
	case authzBackend:
	default:
		fault("--authorization-mode %q is neither webhook, RBAC, backend nor AlwaysAllow", mode)
	}
}

func (d *door) makeAuthz() (*authz.Authorizer, error) {
	c := authz.Config{
		LeaveRemotes: d.o.authorization() == authzBackend, AllowPaths: d.o.alwaysAllow, AllowTTL: orNone(d.o.authorizedTTL), DenyTTL: orNone(d.o.unauthorizedTTL),
		Logger: d.log, Metrics: d.metrics,
	}
	switch mode := d.o.authorization(); {
	case mode == authzAlwaysAllow:
		d.log.Warn("every authenticated user may do everything (--authorization-mode=AlwaysAllow)")
		c.Review = func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionAllow, "", nil
		}
	case mode == authzRBAC || d.o.alone():
		roles := &rbac.Authorizer{Roles: d.registry.Roles}
		c.Review, c.Generation = roles.Authorize, roles.Generation
	default:
		client, err := authorizationv1.NewForConfig(d.client)
		if err != nil {
			return nil, fmt.Errorf("making client of the local apiserver: %w", err)
		}
		if c.Review, err = authz.SubjectAccessReview(client); err != nil {
			return nil, err
		}
		c.Ready = func() bool { return d.local.Ready() == nil }
	}
	may, err := authz.New(c)
	if err != nil {
		return nil, cli.Usage(err)
	}
	return may, nil
}

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
