package tokens

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/cel"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
)

type issuers struct {
	token  authenticator.Token
	config *apiserver.AuthenticationConfiguration
	health []func() error
	cancel context.CancelFunc
}

type caBundle []byte

func (b caBundle) CurrentCABundleContent() []byte { return b }

// newIssuers returns a configuration's issuers. Each has a goroutine for its keys, until ctx ends or cancel is called.
func (t *Tokens) newIssuers(ctx context.Context, config *apiserver.AuthenticationConfiguration) (*issuers, error) {
	ctx, cancel := context.WithCancel(ctx)
	made := &issuers{config: config, cancel: cancel}
	var all []authenticator.Token
	for i := range config.JWT {
		// kube-apiserver accepts all algorithms if its flag is not set.
		o := oidc.Options{JWTAuthenticator: config.JWT[i], SupportedSigningAlgs: oidc.AllValidSigningAlgorithms()}
		if ca := config.JWT[i].Issuer.CertificateAuthority; ca != "" {
			o.CAContentProvider = caBundle(ca)
		}
		a, err := oidc.New(ctx, o)
		if err != nil {
			cancel()
			return nil, fmt.Errorf("making authenticator of issuer %s: %w", config.JWT[i].Issuer.URL, err)
		}
		review := func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
			r, ok, err := a.AuthenticateToken(ctx, token)
			if err != nil && a.HealthCheck() == nil { // others may still lack keys
				t.log.Debug("refusing a JWT", "err", err)
				err = nil
			}
			return r, ok, err
		}
		all, made.health = append(all, authenticator.TokenFunc(review)), append(made.health, a.HealthCheck)
	}
	// As upstream, the only authenticator that claims the token's issuer decides.
	made.token = tokenunion.NewFailOnError(all...)
	return made, nil
}

// names reports whether a configuration has an issuer: of 64 at most, so a list is enough.
func names(config *apiserver.AuthenticationConfiguration, url string) bool {
	return slices.ContainsFunc(config.JWT, func(j apiserver.JWTAuthenticator) bool { return j.Issuer.URL == url })
}

// Issued reports whether a token claims to be a JWT of an issuer in the configuration that was
// taken last, or in the one that is active until then. It verifies nothing.
func (t *Tokens) Issued(token string) bool {
	last, active := t.taken.Load(), t.issuers.Load()
	if last == nil || len(last.JWT) == 0 && (active == nil || len(active.health) == 0) {
		return false
	}
	// As in untrustedIssuer (k8s.io/apiserver/plugin/pkg/authenticator/token/oidc): no issuer in other tokens.
	parts := strings.SplitN(token, ".", 4)
	if len(parts) != 3 {
		return false
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(payload, &claims) != nil { //fairlead:boundary 2 KiB, once per connection's token
		return false
	}
	if claims.Issuer == "accounts.google.com" {
		claims.Issuer = "https://accounts.google.com"
	}
	return names(last, claims.Issuer) || active != nil && names(active.config, claims.Issuer)
}

// err returns an error for all issuers whose keys are still missing.
func (i *issuers) err() (err error) {
	for _, check := range i.health {
		err = errors.Join(err, check())
	}
	return err
}

const (
	retire = 10 * time.Second // how long requests may still use an old configuration: proxy/authn's reviewTimeout
	// waitForKeys is how long a new configuration waits for its issuers, or else the old one stays: kube-apiserver's.
	waitForKeys = time.Minute
	// retryAfter is the pause before a dropped configuration is tried again: an issuer may be away
	// for longer, and kube-apiserver looks at its file once a minute.
	retryAfter = time.Minute
	askForKeys = 100 * time.Millisecond // the interval of checks while one waits
)

// Run activates each new configuration, until ctx ends. The first one is active at once, a later one when all its
// issuers have their keys, so that a mistake does not lock all users out. If they do not get them, it is tried again.
func (t *Tokens) Run(ctx context.Context) error {
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.changed:
		case <-again:
		}
		again = nil
		err := t.replace(ctx)
		if t.dropped.Store(&err); err != nil && ctx.Err() == nil {
			t.log.Error("authentication configuration not activated, the previous one stays", "err", err)
			again = time.After(t.pause)
		}
	}
}

func (t *Tokens) replace(ctx context.Context) error {
	old := t.issuers.Load()
	next, err := t.newIssuers(ctx, t.taken.Load())
	if err != nil {
		return err
	}
	if old != nil { // until all issuers have their keys, or a newer configuration comes, for Run
		_ = wait.PollUntilContextTimeout(ctx, askForKeys, t.wait, true, func(context.Context) (bool, error) {
			err = next.err()
			return err == nil || len(t.changed) > 0, nil
		})
		if err != nil {
			next.cancel()
			return fmt.Errorf("waiting for the keys of issuers: %w", err)
		}
	}
	t.issuers.Store(next)
	t.generation.Add(1) // after the store: later reviews use the new issuers
	t.log.Info("authentication configuration activated", "issuers", len(next.health))
	if old != nil {
		time.AfterFunc(retire, old.cancel) // or with ctx
	}
	return nil
}

// parseConfig parses and validates an AuthenticationConfiguration, by kube-apiserver's own rules.
func parseConfig(data []byte) (*apiserver.AuthenticationConfiguration, error) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	object, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), data)
	if err != nil {
		return nil, fmt.Errorf("reading authentication configuration: %w", err)
	}
	config, ok := object.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("reading authentication configuration: it is %T", object)
	}
	faults := validation.ValidateAuthenticationConfiguration(cel.NewDefaultCompiler(), config, nil)
	if err := faults.ToAggregate(); err != nil {
		return nil, fmt.Errorf("validating authentication configuration: %w", err)
	}
	for i := range config.JWT {
		if config.JWT[i].Issuer.EgressSelectorType != "" {
			return nil, fmt.Errorf("jwt[%d].issuer.egressSelectorType: issuers are dialled directly here", i)
		}
	}
	return config, nil
}
