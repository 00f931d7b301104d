package registry

import (
	"cmp"
	"slices"
	"strings"
	"time"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/registry/bundle"
)

// backend makes the Backend of a remote entry, or returns an equal existing one.
func (b *builder) backend(e *Entry, s *settings, src *origin, old *Entry) *Backend {
	fresh, ref := Backend{}, e.Object.Spec.Service
	if s.urls.given() {
		fresh = s.urls.backend()
	} else {
		fresh = Backend{Service: ref.Name, Port: servicePort(ref), ServerName: ref.Name + "." + ref.Namespace + ".svc"}
	}
	if ref != nil {
		fresh.Namespace, fresh.CAFrom = ref.Namespace, s.caFrom
	}
	fresh.ServerName = cmp.Or(s.serverName, fresh.ServerName)
	fresh.Insecure, fresh.HTTP1, fresh.PingTimeout = e.Object.Spec.InsecureSkipTLSVerify, s.http1, e.Policy.PingTimeout
	if src.ca = b.bundle(e.Object, src.ca); src.ca != nil {
		fresh.CABundle = src.ca.pem
	}
	if old != nil && old.Backend != nil && (old.Backend.CABundle != fresh.CABundle || old.Backend.CAFrom != fresh.CAFrom) {
		src.ownedUntil = b.now.Add(e.Policy.CAOverlap)
	}
	if b.over(src.ownedUntil) {
		src.ownedUntil = time.Time{}
	}
	if fresh.CAFrom != "" || !src.ownedUntil.IsZero() || s.urls.fault != "" {
		fresh.Owner = e.Name
	}
	if old != nil && old.Backend != nil && *old.Backend == fresh {
		return old.Backend
	}
	return b.intern(&fresh)
}

// fewInterned is how many Backends are searched for linearly before a map is made.
const fewInterned = 4

// intern returns the equal Backend of this table or of prev, else fresh.
func (b *builder) intern(fresh *Backend) *Backend {
	equal := func(o *Backend) bool { return o.Service == fresh.Service && *o == *fresh }
	if b.interned++; b.interned <= fewInterned {
		for _, e := range b.prev.entries {
			if e.Backend != nil && equal(e.Backend) {
				return e.Backend
			}
		}
		if at := slices.IndexFunc(b.made, equal); at >= 0 {
			return b.made[at]
		}
		b.made = append(b.made, fresh)
		return fresh
	}
	if b.backends == nil {
		b.backends = make(map[Backend]*Backend, len(b.prev.entries))
		for _, o := range b.made {
			b.backends[*o] = o
		}
		for _, e := range b.prev.entries {
			if e.Backend != nil {
				b.backends[*e.Backend] = e.Backend
			}
		}
	}
	if known := b.backends[*fresh]; known != nil {
		return known
	}
	b.backends[*fresh] = fresh
	return fresh
}

// over reports whether an origin's ownedUntil has passed. If not, the table is rebuilt then.
func (b *builder) over(until time.Time) bool {
	if until.IsZero() {
		return false
	}
	if !b.now.Before(until) {
		return true
	}
	if b.rebuildAt.IsZero() || until.Before(b.rebuildAt) {
		b.rebuildAt = until
	}
	return false
}

// parsedBundle is a parsed caBundle, kept with the entry: parsing costs 20 µs per certificate.
type parsedBundle struct {
	pem string
	// err says why it has no usable certificate.
	err error
	// warning says what is not usable beside a certificate that is. Empty means nothing.
	warning string
}

// bundle returns an APIService's parsed caBundle, nil if it has none. Was is the previous result.
func (b *builder) bundle(object *apiregistrationv1.APIService, was *parsedBundle) *parsedBundle {
	raw := object.Spec.CABundle
	if len(raw) == 0 {
		return nil
	}
	if was != nil && was.pem == string(raw) {
		return was
	}
	if known, ok := b.bundles[string(raw)]; ok {
		return known
	}
	if b.bundles == nil {
		b.bundles = make(map[string]*parsedBundle)
	}
	parsed := parseBundle(raw)
	b.bundles[parsed.pem] = parsed
	return parsed
}

// parseBundle is as lenient as AppendCertsFromPEM, as client-go: one valid certificate is enough.
func parseBundle(raw []byte) *parsedBundle {
	b := &parsedBundle{pem: string(raw)}
	certs, err := bundle.Parse(raw)
	switch {
	case err == nil:
	case len(certs) == 0:
		b.err = err
	default:
		b.warning = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	return b
}
