package proxy

import (
	"hash/maphash"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
	"github.com/fairlead-proxy/fairlead/proxy/memo"
)

const (
	// scraperMemory is how long an admitted scraper is remembered for times when the local
	// apiserver is down. Without it the metrics of an outage would be missing from its first minute
	// on.
	scraperMemory = 5 * time.Minute
	// maxScrapers limits the remembered scrapers: a few Prometheus replicas and an agent. Of more,
	// those that have not come lately are forgotten.
	maxScrapers = 16
	metricsPath = "/metrics"
)

// scrapers remembers the callers that were lately allowed to read /metrics.
type scrapers struct {
	known *memo.Cache[scraper, struct{}]
	seed  maphash.Seed
}

func newScrapers() scrapers {
	return scrapers{memo.New[scraper, struct{}](memo.Config{Entries: maxScrapers, Bytes: maxScrapers}), maphash.MakeSeed()}
}

// scraper identifies a caller by its credentials: another token, or a certificate of another user,
// is another caller.
type scraper struct {
	token             authn.Token
	user, uid, groups string
}

// scraperOf returns the caller of a scrape. It reports false if the request is no scrape, or
// impersonates.
func scraperOf(d *Decision) (s scraper, ok bool) {
	c := &d.Credentials
	if d.Request.Path != metricsPath || d.Request.Verb != "get" || c.Impersonates {
		return s, false
	}
	switch {
	case c.Kind == authn.KindToken || c.Kind == authn.KindIssued:
		return scraper{token: c.Token}, true
	case c.Kind == authn.KindFrontProxy && len(c.User.GetExtra()) > 0: // the extra fields may limit the user
	case c.Kind == authn.KindCertificate || c.Kind == authn.KindFrontProxy:
		u := c.User
		return scraper{user: u.GetName(), uid: u.GetUID(), groups: strings.Join(u.GetGroups(), "\n")}, true
	}
	return s, false
}

func (s scraper) equal(other scraper) bool { return s == other }

// remember records the caller of an authenticated and authorized scrape.
func (k *scrapers) remember(d *Decision, now time.Time) {
	if s, ok := scraperOf(d); ok {
		hash := maphash.Comparable(k.seed, s)
		k.known.Put(&memo.Entry[scraper, struct{}]{Hash: hash, Key: s, Size: 1, Until: now.Add(scraperMemory)}, s.equal)
	}
}

// knows reports whether the caller of a scrape was allowed within the last scraperMemory.
func (k *scrapers) knows(d *Decision, now time.Time) bool {
	s, ok := scraperOf(d)
	return ok && k.known.Get(maphash.Comparable(k.seed, s), now, s.equal) != nil
}
