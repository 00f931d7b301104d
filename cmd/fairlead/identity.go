package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"

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
func (p *process) makeTokens() (*tokens.Tokens, []certs.File) {
	own := p.o.alone() || p.o.impersonates()
	tokens := tokens.New(tokens.Config{Judged: !own, Logger: p.log})
	if own {
		p.loops["tokens"] = tokens.Run
	}
	var files []certs.File
	if p.o.tokenFile != "" {
		files = append(files, certs.File{Use: "token-auth-file", Path: p.o.tokenFile, Take: tokens.TakeTokens})
	}
	if p.o.authConfig != "" {
		files = append(files, certs.File{Use: "authentication-config", Path: p.o.authConfig, Take: tokens.TakeConfig})
	}
	return tokens, files
}

func (o *options) validateTokens(f *cli.Faults) {
	f.Readable("--token-auth-file", o.tokenFile)
	f.Readable("--authentication-config", o.authConfig)
	f.If(o.tokenFile != "" && !o.alone(),
		"--token-auth-file is for --registry=dir: or etcd: without --kubeconfig: a local apiserver verifies tokens itself")
}

// anonymousOf decides which requests without credentials are accepted: the configuration file
// decides, or else the flag. As in kube-apiserver, only the file's content at the start counts.
func (o *options) anonymousOf(tokens *tokens.Tokens, c *authn.Config) error {
	c.Anonymous = o.anonymous
	configured, allowed, paths := tokens.Anonymous()
	if !configured {
		return nil
	}
	if o.anonymousSet {
		return cli.Usage(errors.New("--anonymous-auth cannot be set when the file of --authentication-config has an anonymous section"))
	}
	c.Anonymous, c.AnonymousPaths = allowed, paths
	return nil
}

// makeAuthn makes the authenticator. The local apiserver verifies tokens; without one, the token
// files do.
func (s *server) makeAuthn(tokens *tokens.Tokens) (*authn.Authenticator, error) {
	c := authn.Config{
		VerifyClient: s.certs.Clients().VerifyUser, VerifyFrontProxy: s.certs.Clients().VerifyFrontProxy, Generation: s.certs.Clients().Generation,
		RequestHeaders: authn.HeaderNames{
			Username: s.o.usernameHeaders, UID: s.o.uidHeaders, Group: s.o.groupHeaders, ExtraPrefix: s.o.extraHeaderPrefixes,
		}, Target: s.names.get, TokenTTL: zeroMeansNone(s.o.tokenTTL), Logger: s.log, Metrics: s.metrics,
	}
	if err := s.o.anonymousOf(tokens, &c); err != nil {
		return nil, err
	}
	if s.kube == nil {
		c.Review, c.ReviewGeneration = tokens.Review, tokens.Generation
	} else {
		client, err := authenticationv1.NewForConfig(s.kube.client)
		if err != nil {
			return nil, fmt.Errorf("making client of the local apiserver: %w", err)
		}
		c.Review = authn.TokenReview(client)
	}
	s.impersonate(tokens, &c)
	who, err := authn.New(c)
	if err != nil {
		return nil, cli.Usage(err)
	}
	return who, nil
}

// clusterNames are the header names that the cluster's servers trust, from the cluster's ConfigMap.
type clusterNames struct {
	clients      *certs.Clients
	impersonates bool
	last         atomic.Pointer[target]
}

// target holds the header names of one version of the ConfigMap.
type target struct {
	of    *certs.RequestHeaders
	names authn.HeaderNames
}

// get returns the names. Equal names are the same pointer.
func (n *clusterNames) get() (names *authn.HeaderNames, known bool) {
	h, known := n.clients.Headers()
	// An impersonated cluster may trust no front proxy, and its extension servers still trust ours.
	if h == nil || n.impersonates && len(h.Username) == 0 {
		return nil, known
	}
	if last := n.last.Load(); last != nil && last.of == h {
		return &last.names, known
	}
	fresh := &target{of: h, names: authn.HeaderNames{Username: h.Username, UID: h.UID, Group: h.Group, ExtraPrefix: h.ExtraPrefix}}
	n.last.Store(fresh)
	return &fresh.names, known
}

// ready reports whether the header names that must be stripped are known.
func (n *clusterNames) ready(*http.Request) error {
	if _, known := n.get(); !known {
		return errNoNames
	}
	return nil
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

func (o *options) validateAuthorization(f *cli.Faults) {
	switch mode := o.authorization(); mode {
	case authzWebhook:
		f.If(o.alone(), "--authorization-mode=webhook needs --kubeconfig: there is no local apiserver to ask")
	case authzRBAC, authzAlwaysAllow:
		f.If(o.registry.dir == "" && !o.alone(),
			"--authorization-mode=%s needs --registry=dir:PATH: only the local apiserver evaluates a cluster's own roles (webhook)", mode)
	case authzBackend:
	default:
		f.Add("--authorization-mode %q is neither webhook, RBAC, backend nor AlwaysAllow", mode)
	}
}

func (s *server) makeAuthz() (*authz.Authorizer, error) {
	c := authz.Config{
		LeaveRemotes: s.o.authorization() == authzBackend, AllowPaths: s.o.alwaysAllow, AllowTTL: zeroMeansNone(s.o.authorizedTTL), DenyTTL: zeroMeansNone(s.o.unauthorizedTTL),
		Logger: s.log, Metrics: s.metrics,
	}
	switch mode := s.o.authorization(); {
	case mode == authzAlwaysAllow:
		s.log.Warn("every authenticated user may do everything (--authorization-mode=AlwaysAllow)")
		c.Review = func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionAllow, "", nil
		}
	case mode == authzRBAC || s.kube == nil:
		roles := &rbac.Authorizer{Roles: s.registry.Roles}
		c.Review, c.Generation = roles.Authorize, roles.Generation
	default:
		client, err := authorizationv1.NewForConfig(s.kube.client)
		if err != nil {
			return nil, fmt.Errorf("making client of the local apiserver: %w", err)
		}
		if c.Review, err = authz.SubjectAccessReview(client); err != nil {
			return nil, err
		}
		c.Ready = func() bool { return s.kube.pools.Ready() == nil }
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

func (o *options) validateIdentity(f *cli.Faults) {
	switch {
	case o.localIdentity != identityFrontProxy && !o.impersonates():
		f.Add("--local-identity %q is neither front-proxy nor impersonate", o.localIdentity)
	case o.impersonates() && o.alone():
		f.Add("--local-identity=impersonate needs --kubeconfig: without it, --registry=dir: means that there is no local apiserver")
	case o.impersonates() && (o.authorization() == authzRBAC || o.authorization() == authzAlwaysAllow):
		f.Add("--local-identity=impersonate needs --authorization-mode=webhook or backend: only the cluster can decide who may impersonate whom (--as)")
	case !o.impersonates() && len(o.refuseUsers)+len(o.refuseGroups) > 0:
		f.Add("--impersonate-refuse-users and --impersonate-refuse-groups need --local-identity=impersonate: a front proxy may assert every user")
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
func (s *server) impersonate(tokens *tokens.Tokens, c *authn.Config) {
	if !s.o.impersonates() {
		return
	}
	c.Impersonate, c.Issued = s.kube.credential.Authorization, tokens.Issued
	c.RefuseUsers, c.RefuseGroups = refused(s.o.refuseUsers, "system:serviceaccount:*"), refused(s.o.refuseGroups, "system:masters")
	cluster := c.Review
	c.ReviewGeneration = tokens.Generation
	// Tokens of our issuers are never sent to the cluster, which may expect another audience.
	c.Review = func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		if tokens.Issued(token) {
			return tokens.Review(ctx, token)
		}
		return cluster(ctx, token)
	}
}

var (
	errNoCredential = errors.New("it has no credential to impersonate callers with")
	errNested       = errors.New("it already impersonates a user (as:): kube-apiserver accepts only one impersonated identity, the caller's")
)
