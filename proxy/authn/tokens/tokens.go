package tokens

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"

	"github.com/fairlead-proxy/fairlead/registry/latest"
)

// Tokens says who a bearer token belongs to. Make one with New.
type Tokens struct {
	log        *slog.Logger
	judged     bool
	file       atomic.Pointer[tokenfile.TokenAuthenticator]
	issuers    atomic.Pointer[issuers]
	generation atomic.Uint64

	mu sync.Mutex // guards what follows
	// config is the one that was taken last; changed holds a token while Run has not seen it.
	config  *apiserver.AuthenticationConfiguration
	changed chan struct{}
}

// Config is what a Tokens needs. The zero Config knows JWTs.
type Config struct {
	// Judged says that somebody else judges all tokens: the local apiserver. A configuration with a jwt
	// section is an error then, because nobody here would ask it.
	Judged bool
	// Logger gets what is refused and put in force. Nil discards.
	Logger *slog.Logger
}

// New makes one that knows no token yet.
func New(c Config) *Tokens {
	return &Tokens{log: cmp.Or(c.Logger, slog.New(slog.DiscardHandler)), judged: c.Judged, changed: make(chan struct{}, 1)}
}

var errJudged = errors.New("jwt: the local apiserver judges all tokens: configure its issuers there, or run without one (--registry=dir: without --kubeconfig)")

// TakeTokens puts a token file in force: lines of token,user,uid[,"group,…"].
func (t *Tokens) TakeTokens(data []byte) error {
	known, err := parseTokens(data)
	if err != nil {
		return err
	}
	t.file.Store(tokenfile.New(known))
	t.generation.Add(1)
	return nil
}

// TakeConfig takes an AuthenticationConfiguration of apiserver.config.k8s.io. Run puts it in force.
func (t *Tokens) TakeConfig(data []byte) error {
	config, err := parseConfig(data)
	if err != nil {
		return err
	}
	if t.judged && len(config.JWT) > 0 {
		return errJudged
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.config = config
	latest.Wake(t.changed)
	return nil
}

// Anonymous says what the configuration that was taken last has to say of requests without credentials: whether it says anything, whether they pass, and on
// which paths (none: on all).
func (t *Tokens) Anonymous() (said, allowed bool, paths []string) {
	config := t.latest()
	if config == nil || config.Anonymous == nil {
		return false, false, nil
	}
	for _, c := range config.Anonymous.Conditions {
		paths = append(paths, c.Path)
	}
	return true, config.Anonymous.Enabled, paths
}

func (t *Tokens) latest() *apiserver.AuthenticationConfiguration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.config
}

// Generation changes whenever Review might answer differently.
func (t *Tokens) Generation() uint64 { return t.generation.Load() }

// Review says whose a token is: the file's first, then the issuers'. An error means that an issuer has not given its keys yet, so that nobody can tell; a JWT
// that its issuer's rules refuse is the caller's own fault, and just not known.
func (t *Tokens) Review(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if file := t.file.Load(); file != nil {
		if r, ok, err := file.AuthenticateToken(ctx, token); ok || err != nil {
			return r, ok, err
		}
	}
	i := t.issuers.Load()
	if i == nil {
		return nil, false, nil
	}
	r, ok, err := i.token.AuthenticateToken(ctx, token)
	switch {
	case ok:
		return r, true, nil
	case err != nil && i.err() != nil:
		return nil, false, err
	case err != nil:
		t.log.Debug("refusing a JWT", "err", err)
	}
	return nil, false, nil
}
