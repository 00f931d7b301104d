package proxy

import (
	"strings"
	"sync"
	"time"

	"github.com/fairlead-proxy/fairlead/proxy/authn"
)

const (
	// scraperMemory is how long a scraper that was let in stays known while no local apiserver can be asked.
	// Without it the metrics of an outage are missing from its first minute on (design §8).
	scraperMemory = 5 * time.Minute
	// maxScrapers bounds the scrapers that are remembered: a few Prometheus replicas and an agent.
	maxScrapers = 16
	metricsPath = "/metrics"
)

// scrapers remembers the callers that the cluster let read /metrics lately. The zero value remembers nobody.
type scrapers struct {
	mu    sync.Mutex            // guards known
	known map[scraper]time.Time // :: scraper → when it is forgotten
}

// scraper is a caller by what it presented: another token, or a certificate of another user, is another
// caller.
type scraper struct {
	token             authn.Token
	user, uid, groups string
}

// scraperOf returns the caller of a scrape. Not ok: the request is none, or its caller asks in somebody else's name.
func scraperOf(d *Decision) (s scraper, ok bool) {
	c := &d.Credentials
	if d.Request.Path != metricsPath || d.Request.Verb != "get" || c.Impersonates {
		return s, false
	}
	switch {
	case c.Kind == authn.KindToken:
		return scraper{token: c.Token}, true
	case c.Kind == authn.KindFrontProxy && len(c.User.GetExtra()) > 0: // it may be a limit
	case c.Kind == authn.KindCertificate || c.Kind == authn.KindFrontProxy:
		u := c.User
		return scraper{user: u.GetName(), uid: u.GetUID(), groups: strings.Join(u.GetGroups(), "\n")}, true
	}
	return s, false
}

// remember is told of a request that was authenticated and authorized.
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

// knows reports whether the caller of a scrape was let in within the last scraperMemory.
func (k *scrapers) knows(d *Decision, now time.Time) bool {
	s, ok := scraperOf(d)
	if !ok {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return now.Before(k.known[s])
}

// vouched reports whether a request is a known scraper's while no local apiserver can say who it is and what it may.
func (p *Proxy) vouched(d *Decision, now time.Time) bool {
	return p.cfg.Local != nil && p.cfg.Local.Ready() != nil && p.scrapers.knows(d, now)
}
