package tokens

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"github.com/fairlead-proxy/fairlead/registry/latest"
)

// issuers are the JWT issuers of one configuration.
type issuers struct {
	token  authenticator.Token
	health []func() error
	cancel context.CancelFunc
}

// caBundle is an issuer's CA.
type caBundle []byte

func (b caBundle) CurrentCABundleContent() []byte { return b }

// newIssuers makes them. Each asks its issuer for keys in a goroutine of its own, until ctx ends or cancel is called.
func newIssuers(ctx context.Context, config *apiserver.AuthenticationConfiguration) (*issuers, error) {
	ctx, cancel := context.WithCancel(ctx)
	made := &issuers{cancel: cancel}
	var all []authenticator.Token
	for i := range config.JWT {
		// kube-apiserver accepts all of them where its flag is not set.
		o := oidc.Options{JWTAuthenticator: config.JWT[i], SupportedSigningAlgs: oidc.AllValidSigningAlgorithms()}
		if ca := config.JWT[i].Issuer.CertificateAuthority; ca != "" {
			o.CAContentProvider = caBundle(ca)
		}
		a, err := oidc.New(ctx, o)
		if err != nil {
			cancel()
			return nil, fmt.Errorf("making authenticator of issuer %s: %w", config.JWT[i].Issuer.URL, err)
		}
		all, made.health = append(all, a), append(made.health, a.HealthCheck)
	}
	// The first that calls itself the token's issuer has the last word, as upstream has it.
	made.token = tokenunion.NewFailOnError(all...)
	return made, nil
}

// err says which issuers have not given their keys yet.
func (i *issuers) err() error {
	var faults []error
	for _, check := range i.health {
		faults = append(faults, check())
	}
	return errors.Join(faults...)
}

const (
	// waitForKeys is how long a new configuration waits for its issuers before it is given up and the old one stays: kube-apiserver's number.
	waitForKeys = time.Minute
	// askForKeys is how often they are looked at meanwhile.
	askForKeys = 100 * time.Millisecond
	// retire is how long an old configuration lives on for the requests that are just using it: their bound, see proxy/authn's reviewTimeout.
	retire = 10 * time.Second
)

// Run puts each configuration that was taken in force, until ctx ends. The first one counts at once; a later one when all its issuers have given their keys,
// so that a slip in it does not lock everybody out.
func (t *Tokens) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.changed:
		}
		if err := t.replace(ctx); err != nil && ctx.Err() == nil {
			t.log.Error("authentication configuration is not in force, the former one stays", "err", err)
		}
	}
}

func (t *Tokens) replace(ctx context.Context) error {
	old := t.issuers.Load()
	next, err := newIssuers(ctx, t.latest())
	if err != nil {
		return err
	}
	if old != nil {
		if err := t.await(ctx, next); err != nil {
			next.cancel()
			return err
		}
	}
	t.issuers.Store(next)
	t.generation.Add(1) // after the store: what is asked from now on is asked of the new ones
	t.log.Info("authentication configuration is in force", "issuers", len(next.health))
	if old != nil {
		time.AfterFunc(retire, old.cancel) // or with ctx
	}
	return nil
}

// await waits until all issuers have given their keys, or there is a newer configuration to be tried.
func (t *Tokens) await(ctx context.Context, next *issuers) error {
	ctx, cancel := context.WithTimeout(ctx, waitForKeys)
	defer cancel()
	tick := time.NewTicker(askForKeys)
	defer tick.Stop()
	for {
		err := next.err()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for the keys of issuers: %w", err)
		case <-t.changed:
			latest.Wake(t.changed) // for Run
			return fmt.Errorf("waiting for the keys of issuers, there is a newer configuration: %w", err)
		case <-tick.C:
		}
	}
}
