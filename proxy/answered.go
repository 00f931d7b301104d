package proxy

import (
	"net/http"
	"slices"
	"strings"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// hopByHop reports whether a field (name in lower case) is a matter of two neighbours on a connection
// (RFC 9110 §7.6.1): it is forwarded in neither direction.
func hopByHop(name string) bool {
	switch name {
	case "te", "trailer", "proxy-authenticate", "http2-settings":
		return true
	}
	return wire.ConnectionSpecific(name)
}

// crossOrigin reports whether a field lets pages of other origins read an answer. An extension server
// has no say in who may read the cluster's API from a browser: upstream drops them, too.
func crossOrigin(name string) bool {
	switch name {
	case "access-control-allow-credentials", "access-control-allow-headers", "access-control-allow-methods", "access-control-allow-origin":
		return true
	}
	return false
}

// withholds reports whether a field of what the backend has said stays behind, wherever it has said
// it: in an interim head or the final one, in a trailer, in a 101 or in the refusal of an upgrade.
func (d *Decision) withholds(name string) bool {
	return hopByHop(name) || d.Action == ToRemote && crossOrigin(name)
}

// clean does that to a header that net/http has read, or that holds trailers for it to write.
func (d *Decision) clean(header http.Header) {
	listed := listedIn(nil, header["Connection"]...)
	for name := range header {
		lower := strings.ToLower(strings.TrimPrefix(name, http.TrailerPrefix))
		if d.withholds(lower) || slices.Contains(listed, lower) {
			delete(header, name)
		}
	}
}

// rejects reports whether a remote's response is a redirect that must not reach the client.
func (p *Proxy) rejects(status int) bool {
	if p.cfg.ForwardRedirects {
		return false
	}
	switch status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusUseProxy, http.StatusTemporaryRedirect, http.StatusPermanentRedirect, http.StatusMultipleChoices:
		return true
	}
	return false
}
