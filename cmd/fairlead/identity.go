package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/fairlead-proxy/fairlead/certs"
	"github.com/fairlead-proxy/fairlead/certs/trust"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/authn/tokens"
	"github.com/fairlead-proxy/fairlead/proxy/authz"
	"github.com/fairlead-proxy/fairlead/proxy/authz/rbac"
)

// authConfigMap names the ConfigMap by which a cluster says which CAs its extension servers trust.
func authConfigMap() types.NamespacedName {
	return types.NamespacedName{Namespace: "kube-system", Name: "extension-apiserver-authentication"}
}

// makeTrust makes the CAs that verify backends and the local apiserver, then our certificates and the CAs of clients.
func (s *server) makeTrust() (err error) {
	s.trust = trust.New(trust.Config{
		Tables: s.registry, Watch: s.registry.Watch,
		Renewed: func(apiService string) { s.prober.Renew(apiService) }, Sinks: s.sinks,
		ClientCertificate: func(r *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return s.certs.ProxyClient().GetClientCertificate(r)
		},
	})
	if s.kube != nil {
		s.kube.trust = s.trust
	}
	c := s.o.Certs
	c.MinVersion, _ = cliflag.TLSVersion(s.o.minTLSVersion) // validate has seen that this and the next two are known
	c.CipherSuites, _ = cliflag.TLSCipherSuites(s.o.cipherSuites)
	c.Curves, _ = cliflag.TLSCurvePreferences(s.o.curves)
	c.SNI, c.HTTP1, c.ConfigMap = s.o.SNI(), !s.o.http2, authConfigMap()
	etcd := certs.File{Use: "etcd-client", Path: s.o.etcd.CertFile, Key: s.o.etcd.KeyFile, Pair: certs.NewPair()}
	c.Files = append(s.files, etcd)
	c.Watch, c.Sinks = s.registry.Watch, s.sinks
	s.certs, err = certs.New(c)
	s.loops["certificates"], s.loops["backend trust"] = s.certs.Run, s.trust.Run
	return cli.Usage(err)
}

// makeTokens makes the token authenticator that works without the local apiserver.
func (p *process) makeTokens() *tokens.Tokens {
	own := p.o.alone() || p.o.impersonates()
	tokens := tokens.New(tokens.Config{Judged: !own, Logger: p.log})
	if own {
		p.loops["tokens"] = tokens.Run
	}
	p.files = append(p.files,
		certs.File{Use: "token-auth-file", Path: p.o.tokenFile, Take: tokens.TakeTokens},
		certs.File{Use: "authentication-config", Path: p.o.authConfig, Take: tokens.TakeConfig})
	return tokens
}

func (s *server) makeAuthn(tokens *tokens.Tokens) (*authn.Authenticator, error) {
	c, clients := s.o.authn, s.certs.Clients()
	c.VerifyClient, c.VerifyFrontProxy = clients.VerifyUser, clients.VerifyFrontProxy
	c.Generation, c.Target = clients.Generation, s.clusterNames
	// As in extension servers. The cluster's own aggregator sends a UID, too, which the ConfigMap may not name.
	c.ReadTarget = s.o.Certs.TrustConfigMap && s.o.Certs.RequestHeaderCA == "" && s.o.Behind == ""
	c.TokenTTL, c.Sinks = zeroMeansNone(c.TokenTTL), s.sinks
	// The file decides, else the flag. As in kube-apiserver, only its content at the start counts.
	if configured, allowed, paths := tokens.Anonymous(); configured && s.o.anonymousSet {
		return nil, cli.Usage(errors.New(
			"--anonymous-auth cannot be set when the file of --authentication-config has an anonymous section"))
	} else if configured {
		c.Anonymous, c.AnonymousPaths = allowed, paths
	}
	if s.kube == nil {
		c.Review, c.ReviewGeneration = tokens.Review, tokens.Generation
	} else {
		c.Review = noted(&s.tokens, authn.TokenReview(s.kube.api.AuthenticationV1()))
	}
	// With impersonation JWTs are verified here, and users so known are passed to the apiserver.
	if cluster := c.Review; s.o.impersonates() {
		c.Impersonate, c.Issued, c.ReviewGeneration = s.kube.credential.Authorization, tokens.Issued, tokens.Generation
		c.RefuseUsers = cli.List(c.RefuseUsers, "system:serviceaccount:*")
		c.RefuseGroups = cli.List(c.RefuseGroups, "system:masters")
		// Tokens of our issuers are never sent to the cluster, which may expect another audience.
		c.Review = func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
			if tokens.Issued(token) {
				return tokens.Review(ctx, token)
			}
			return cluster(ctx, token)
		}
	}
	who, err := authn.New(c)
	return who, cli.Usage(err)
}

// clusterNames returns the header names that the cluster's servers trust, by its ConfigMap. Equal ones are one pointer.
func (s *server) clusterNames() (names *authn.HeaderNames, known bool) {
	h, known := s.certs.Clients().Headers()
	// An impersonated cluster may trust no front proxy, and its extension servers still trust ours.
	if h == nil || s.o.impersonates() && len(h.Username) == 0 {
		return nil, known
	}
	return (*authn.HeaderNames)(h), known
}

// inCluster returns why the cluster's servers, if they must, do not take this process for a front proxy.
func (s *server) inCluster() error {
	chain, err := s.certs.ProxyClient().Chain()
	if err == nil && !s.o.impersonates() && s.o.Behind == "" {
		_, err = s.certs.Clients().VerifyInCluster(chain)
	}
	return err
}

// namesReady reports whether the header names that must be stripped are known.
func (s *server) namesReady(*http.Request) error {
	if _, known := s.clusterNames(); !known {
		return fmt.Errorf("ConfigMap %s has not been read yet, or what it has is refused", authConfigMap())
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

// authorization returns the mode in force. The default is the local apiserver's, if there is one, else RBAC.
func (o *options) authorization() string {
	if o.authzMode == "" && o.alone() {
		return authzRBAC
	}
	return cmp.Or(o.authzMode, authzWebhook)
}

func (o *options) validateAuthorization(f *cli.Faults) {
	switch mode := o.authorization(); mode {
	case authzWebhook:
		f.If(o.alone(), "--authorization-mode=webhook needs --kubeconfig: there is no local apiserver to ask")
	case authzRBAC, authzAlwaysAllow:
		f.If(o.registry.dir == "" && !o.alone(), "--authorization-mode=%s needs --registry=dir:PATH: only the local "+
			"apiserver evaluates a cluster's own roles (webhook)", mode)
	case authzBackend:
	default:
		f.Add("--authorization-mode %q is neither webhook, RBAC, backend nor AlwaysAllow", mode)
	}
}

func (s *server) makeAuthz() (*authz.Authorizer, error) {
	c := s.o.authz
	c.LeaveRemotes, c.Sinks = s.o.authorization() == authzBackend, s.sinks
	c.AllowTTL, c.DenyTTL = zeroMeansNone(c.AllowTTL), zeroMeansNone(c.DenyTTL)
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
		c.Review = noted(&s.requests, authz.SubjectAccessReview(s.kube.api.AuthorizationV1()))
		c.Ready = func() bool { return s.kube.pools.Ready() == nil }
	}
	may, err := authz.New(c)
	return may, cli.Usage(err)
}

func (o *options) impersonates() bool { return o.LocalIdentity == cli.Impersonate }

func (o *options) validateIdentity(f *cli.Faults) {
	f.If(o.Behind != "" && o.Certs.RequestHeaderCA == "" && !o.Certs.TrustConfigMap, "--behind needs "+
		"--requestheader-client-ca-file or --authentication-configmap: they say who is the cluster's aggregator")
	own := o.authorization() == authzRBAC || o.authorization() == authzAlwaysAllow
	f.If(o.impersonates() && o.alone(), "--local-identity=impersonate needs --kubeconfig: "+
		"without it, --registry=dir: means that there is no local apiserver")
	f.If(o.impersonates() && !o.alone() && own, "--local-identity=impersonate needs --authorization-mode=webhook or "+
		"backend: only the cluster can decide who may impersonate whom (--as)")
	f.If(!o.impersonates() && len(o.authn.RefuseUsers)+len(o.authn.RefuseGroups)+len(o.authn.GroupPrefixes) > 0,
		"--impersonate-refuse-users, --impersonate-refuse-groups and --impersonate-groups-prefix need "+
			"--local-identity=impersonate: a front proxy may assert every user")
	odd := func(p string) bool { return p == "" || strings.HasSuffix(p, "*") }
	f.If(slices.ContainsFunc(o.authn.GroupPrefixes, odd), "--impersonate-groups-prefix %q has an empty prefix, or "+
		"one that ends with *, which stands for itself", o.authn.GroupPrefixes)
}
