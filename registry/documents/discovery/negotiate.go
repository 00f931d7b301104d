package discovery

import (
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
)

// choice is the form negotiated by an Accept field.
type choice struct {
	media      int // in allMedias
	aggregated bool
	pretty     bool
	refused    bool // no acceptable form: 406
}

const (
	// maxAccepts bounds the cached Accept fields. A cluster's clients use a dozen.
	maxAccepts = 128
	// maxAccept bounds the length of a cached field.
	maxAccept = 512
)

// negotiator chooses forms as k8s.io/apiserver does, and caches its choices: parsing an Accept
// field costs ten times as much as serving a document.
type negotiator struct {
	codecs *codecs
	// aggregates says that aggregated discovery is available.
	aggregates bool
	// supported are the media types, by name.
	supported []string

	known atomic.Pointer[map[string]choice]
	mu    sync.Mutex // guards the writing of known
}

// of returns the chosen document.
func (c choice) of(aggregated, legacy *document) *document {
	if c.aggregated {
		return aggregated
	}
	return legacy
}

// remembered returns the cached choice.
func (n *negotiator) remembered(accept string) (c choice, ok bool) {
	if known := n.known.Load(); known != nil {
		c, ok = (*known)[accept]
	}
	return c, ok
}

func (n *negotiator) choose(accept string) choice {
	c, ok := n.remembered(accept)
	if ok {
		return c
	}
	if c = n.negotiate(accept); len(accept) > maxAccept {
		return c
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	next := map[string]choice{}
	if known := n.known.Load(); known != nil && len(*known) < maxAccepts {
		next = maps.Clone(*known)
	} // else it begins anew: one client may have filled it with fields that nobody sends again
	next[strings.Clone(accept)] = c
	n.known.Store(&next)
	return c
}

func (n *negotiator) negotiate(accept string) choice {
	if n.aggregates {
		// v2beta1 is no longer recognised, as in kube-apiserver since 1.35: the next clause
		// decides.
		m, _ := negotiation.NegotiateMediaTypeOptions(accept, n.codecs.aggregated.SupportedMediaTypes(), aggregated.DiscoveryEndpointRestrictions)
		if aggregated.IsAggregatedDiscoveryGVK(m.Convert) {
			return choice{media: mediaNumber(m.Accepted), aggregated: true, pretty: m.Pretty}
		}
	}
	m, ok := negotiation.NegotiateMediaTypeOptions(accept, n.codecs.legacy.SupportedMediaTypes(), negotiation.DefaultEndpointRestrictions)
	if !ok {
		return choice{refused: true}
	}
	return choice{media: mediaNumber(m.Accepted), pretty: m.Pretty}
}

func mediaNumber(info runtime.SerializerInfo) int {
	all := allMedias()
	return max(0, slices.Index(all[:], info.MediaType))
}

// produces reports whether go-restful would find one of the media types in the Accept field.
func produces(accept string, supported []string) bool {
	if accept == "" {
		return true
	}
	for item := range strings.SplitSeq(accept, ",") {
		name, _, _ := strings.Cut(item, ";")
		if name = strings.Trim(name, " "); name == "*/*" || slices.Contains(supported, name) {
			return true
		}
	}
	return false
}

// wantsPretty reports whether a request asks for indented text, by its query, or comes from a tool
// that people read.
func wantsPretty(query, agent string) bool {
	if strings.Contains(query, "pretty") {
		values, _ := url.ParseQuery(query) //fairlead:boundary 1 KiB, else at the desk; as far as it can be parsed
		if v := values.Get("pretty"); v != "" {
			pretty, _ := strconv.ParseBool(v)
			return pretty
		}
	}
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}
