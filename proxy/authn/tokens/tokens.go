// Package tokens authenticates bearer tokens without a cluster: those of a token file (--token-auth-file), and JWTs of
// issuers (--authentication-config). k8s.io/apiserver's own code parses and verifies them.
//
// The caller watches the files, and passes their contents to TakeTokens and TakeConfig, at the start and after each
// change. The state is immutable, behind atomic pointers; Run owns the issuers' goroutines and replaces it.
package tokens

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/internal/latest"
)

// Tokens authenticates bearer tokens. Make one with New.
type Tokens struct {
	log        *slog.Logger
	judged     bool
	file       atomic.Pointer[tokenfile.TokenAuthenticator]
	issuers    atomic.Pointer[issuers]
	generation atomic.Uint64
	taken      atomic.Pointer[apiserver.AuthenticationConfiguration] // last
	changed    chan struct{}                                         // has an element until Run has seen what was taken
	dropped    atomic.Pointer[error]                                 // why what was taken last is not active
	// wait and pause are waitForKeys and retryAfter, except in tests.
	wait, pause time.Duration
}

// Config configures Tokens. The zero Config accepts JWTs.
type Config struct {
	// Judged says that the local apiserver authenticates all tokens. A configuration with a jwt
	// section is then an error, because its issuers would never be used.
	Judged bool
	Logger *slog.Logger // logs refused and activated configurations. Nil discards
}

// New returns a Tokens that knows no token yet.
func New(c Config) *Tokens {
	return &Tokens{
		log:     cmp.Or(c.Logger, slog.New(slog.DiscardHandler)),
		judged:  c.Judged,
		changed: make(chan struct{}, 1),
		wait:    waitForKeys, pause: retryAfter,
	}
}

// TakeTokens activates a token file: lines of token,user,uid[,"group,…"].
func (t *Tokens) TakeTokens(data []byte) error {
	known, err := parseTokens(data)
	if err == nil {
		t.file.Store(tokenfile.New(known))
		t.generation.Add(1)
	}
	return err
}

// TakeConfig takes an AuthenticationConfiguration of apiserver.config.k8s.io. Run activates it.
func (t *Tokens) TakeConfig(data []byte) error {
	config, err := parseConfig(data)
	if err != nil {
		return err
	}
	if t.judged && len(config.JWT) > 0 {
		return errors.New("jwt: the local apiserver authenticates all tokens: configure its issuers there, " +
			"or run without one (--registry=dir: without --kubeconfig), or with --local-identity=impersonate")
	}
	t.taken.Store(config)
	t.generation.Add(1) // after the store: Issued must be called again
	latest.Wake(t.changed)
	return nil
}

// Anonymous returns what the last configuration says about requests without credentials: whether it
// says anything, whether they are allowed, and on which paths (none means all).
func (t *Tokens) Anonymous() (configured, allowed bool, paths []string) {
	last := t.taken.Load()
	if last == nil || last.Anonymous == nil {
		return false, false, nil
	}
	for _, c := range last.Anonymous.Conditions {
		paths = append(paths, c.Path)
	}
	return true, last.Anonymous.Enabled, paths
}

// Generation changes whenever Review's result may change.
func (t *Tokens) Generation() uint64 { return t.generation.Load() }

// Faults returns why JWTs of active issuers cannot be verified, and why the configuration taken last is not active.
func (t *Tokens) Faults() (keys, dropped error) {
	if i := t.issuers.Load(); i != nil {
		keys = i.err()
	}
	return keys, ptr.Deref(t.dropped.Load(), nil)
}

// Review authenticates a token: by the file, then by the issuers. An error means that its issuer's keys are still
// missing, so the token cannot be verified. A JWT that its issuer's rules refuse is reported as not authenticated.
func (t *Tokens) Review(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if file := t.file.Load(); file != nil {
		if r, ok, _ := file.AuthenticateToken(ctx, token); ok { // it has no errors
			return r, true, nil
		}
	}
	if i := t.issuers.Load(); i != nil {
		return i.token.AuthenticateToken(ctx, token)
	}
	if t.Issued(token) { // requests may come before Run has set issuers up
		return nil, false, errors.New("reviewing a JWT: its issuer is not set up yet")
	}
	return nil, false, nil
}

// parseTokens parses a file of kube-apiserver's --token-auth-file. It is stricter in two cases of which kube-apiserver
// only warns: an empty token and a repeated token are errors. No error holds a token.
func parseTokens(data []byte) (map[string]*user.DefaultInfo, error) {
	known := make(map[string]*user.DefaultInfo)
	r := csv.NewReader(bytes.NewReader(data))
	r.FieldsPerRecord = -1
	for {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			return known, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading tokens: %w", err)
		}
		line, _ := r.FieldPos(0)
		switch {
		case len(record) < 3:
			return nil, fmt.Errorf("line %d has %d columns, want token, user, uid and perhaps groups",
				line, len(record))
		case record[0] == "":
			return nil, fmt.Errorf("line %d has an empty token", line)
		case record[1] == "":
			return nil, fmt.Errorf("line %d has no user", line)
		case known[record[0]] != nil:
			return nil, fmt.Errorf("line %d has the token of another line", line)
		}
		u := &user.DefaultInfo{Name: record[1], UID: record[2]}
		if len(record) > 3 {
			u.Groups = strings.Split(record[3], ",")
		}
		known[record[0]] = u
	}
}
