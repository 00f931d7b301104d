package trust

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"maps"
	"slices"
	"time"
)

// Status describes the trust of one APIService's backend, for the status page and for metrics.
type Status struct {
	// APIService is its name, "local-apiserver" for the local apiserver.
	APIService string `json:"apiService"`
	// Source is where the roots come from: "inline", "system", "none" (verification is off),
	// "configmap <namespace>/<name>/<key>" or "kubeconfig".
	Source string `json:"source"`
	// Changed is when the bundle was last replaced or became unreadable.
	Changed time.Time `json:"changed"`
	// Fault is why the newest bundle is not used. Empty means that it is.
	Fault string `json:"fault,omitempty"`
	// Warning says which part of the bundle was ignored. Empty means none.
	Warning string `json:"warning,omitempty"`
	// OverlapUntil is when the last replaced roots stop being trusted. Zero means none.
	OverlapUntil time.Time `json:"overlapUntil,omitzero"`
	// OverlapInForce says that an endpoint still presents a chain that only the replaced roots
	// verify.
	OverlapInForce bool `json:"overlapInForce,omitempty"`
	// CAs are the certificates of the bundle. It is empty for the system's roots and without
	// verification.
	CAs []Certificate `json:"cas,omitempty"`
	// Leaves are the certificates that endpoints presented in the last minutes.
	Leaves []Certificate `json:"leaves,omitempty"`
}

// Faults returns the faults in the trust of APIServices, by name. It costs much less than Status.
func (t *Trust) Faults() map[string]string {
	out := make(map[string]string)
	t.mu.RLock()
	defer t.mu.RUnlock()
	for name, b := range t.backends {
		b.mu.Lock()
		switch v := b.current.Load(); {
		case v.fault != nil:
			out[name] = "the CA bundle is not used: " + v.fault.Message
		case b.inForce:
			out[name] = "the backend still presents a certificate that only the replaced CA verifies: it is trusted until " + v.overlapUntil(time.Now()).UTC().Format(time.RFC3339)
		}
		b.mu.Unlock()
	}
	return out
}

// Certificate is one certificate, held or presented.
type Certificate struct {
	// Subject is its common name or, without one, another name.
	Subject string `json:"subject"`
	// Fingerprint is the first half of its SHA-256, in hexadecimal.
	Fingerprint string `json:"fingerprint"`
	// NotAfter is when it expires.
	NotAfter time.Time `json:"notAfter"`
	// Live says of a CA that a chain presented in the last minutes ends in it.
	Live bool `json:"live,omitempty"`
}

// Describe returns a Certificate for c.
func Describe(c *x509.Certificate) Certificate {
	sum := sha256.Sum256(c.Raw)
	return Certificate{Subject: subject(c), Fingerprint: hex.EncodeToString(sum[:16]), NotAfter: c.NotAfter}
}

// Status describes the local apiserver's trust and then every backend's, sorted by the names of
// their APIServices.
func (t *Trust) Status() []Status {
	all := append([]*backend{t.local}, t.all()...)
	out := make([]Status, 0, len(all))
	for _, b := range all {
		out = append(out, b.status(time.Now()))
	}
	return out
}

func (b *backend) status(now time.Time) Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.current.Load()
	s := Status{APIService: b.name, Source: b.source, Changed: v.changed, OverlapInForce: b.inForce, OverlapUntil: v.overlapUntil(now)}
	if v.fault != nil {
		s.Fault = v.fault.Message
	}
	liveRoots := make(map[identity]bool)
	for _, l := range b.seen() {
		s.Leaves = append(s.Leaves, Describe(l.cert))
		liveRoots[l.root] = true
	}
	if v.current != nil {
		s.Warning = v.current.warning
		for _, c := range v.current.certs {
			d := Describe(c)
			d.Live = liveRoots[identify(c)]
			s.CAs = append(s.CAs, d)
		}
	}
	byExpiry := func(a, b Certificate) int {
		return cmp.Or(a.NotAfter.Compare(b.NotAfter), cmp.Compare(a.Fingerprint, b.Fingerprint))
	}
	slices.SortFunc(s.CAs, byExpiry)
	s.CAs = slices.CompactFunc(s.CAs, func(a, b Certificate) bool { return a.Fingerprint == b.Fingerprint })
	slices.SortFunc(s.Leaves, byExpiry)
	return s
}

// seen returns the leaves that endpoints presented to any user of the Backend. The caller holds the
// mutex.
func (b *backend) seen() map[[sha256.Size]byte]leaf {
	if b.all == nil {
		return b.leaves
	}
	b.all.mu.Lock()
	defer b.all.mu.Unlock()
	seen := maps.Clone(b.all.leaves)
	maps.Copy(seen, b.leaves) // presented while this backend was not shared
	return seen
}
