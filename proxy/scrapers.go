package proxy

import (
	"strings"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
)

const (
	// scraperMemory is how long an admitted scraper is remembered for times when the local
	// apiserver is down. Without it the metrics of an outage would be missing from its first minute
	// on (design §8).
	scraperMemory = 5 * time.Minute
	// maxScrapers limits the remembered scrapers: a few Prometheus replicas and an agent.
	maxScrapers = 16
	metricsPath = "/metrics"
)

// scrapers remembers the callers that were lately allowed to read /metrics. The zero value
// remembers none.
type scrapers struct {
	mu    sync.Mutex            // guards known
	known map[scraper]time.Time // :: scraper → when it is forgotten
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

// remember records the caller of an authenticated and authorized scrape.
func (k *scrapers) remember(d *Decision, now time.Time) {
	s, ok := scraperOf(d)
	if !ok {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known == nil {
		k.known = make(map[scraper]time.Time, maxScrapers)
	}
	for other, until := range k.known {
		if !now.Before(until) {
			delete(k.known, other)
		}
	}
	if _, again := k.known[s]; again || len(k.known) < maxScrapers {
		k.known[s] = now.Add(scraperMemory)
	}
}

// knows reports whether the caller of a scrape was allowed within the last scraperMemory.
func (k *scrapers) knows(d *Decision, now time.Time) bool {
	s, ok := scraperOf(d)
	if !ok {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return now.Before(k.known[s])
}

// knownScraper reports whether a request comes from a known scraper while the local apiserver is
// down.
func (p *Proxy) knownScraper(d *Decision, now time.Time) bool {
	return p.cfg.Local != nil && p.cfg.Local.Ready() != nil && p.scrapers.knows(d, now)
}
