package proxy

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/fairlead-proxy/fairlead/proxy/backend"
	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

// hopByHop reports whether a field (name in lower case) concerns a single connection (RFC 9110
// §7.6.1). Such a field is forwarded in neither direction.
func hopByHop(name string) bool {
	switch name {
	case "te", "trailer", "proxy-authenticate", "http2-settings":
		return true
	}
	return wire.ConnectionSpecific(name)
}

// crossOrigin reports whether a field lets pages of other origins read a response. An extension
// server must not decide who may read the cluster's API from a browser; upstream drops these
// fields, too.
func crossOrigin(name string) bool {
	switch name {
	case "access-control-allow-credentials", "access-control-allow-headers", "access-control-allow-methods", "access-control-allow-origin":
		return true
	}
	return false
}

// withholds reports whether a field of the backend's response is not forwarded: in an interim head,
// the final head, a trailer, a 101, or a refused upgrade.
func (d *Decision) withholds(name string) bool {
	return hopByHop(name) || d.Action == ToRemote && crossOrigin(name)
}

// clean removes such fields from a header or trailer that net/http has read.
func (d *Decision) clean(header http.Header) error {
	names, ok := listed(header["Connection"])
	if !ok || len(header) > wire.MaxNames {
		return errManyFields
	}
	for name := range header {
		if lower := strings.ToLower(name); d.withholds(lower) || names[lower] {
			delete(header, name)
		}
	}
	return nil
}

var errManyFields = fmt.Errorf("%w: too many names of fields", backend.ErrBadResponse)

// rejects reports whether a remote's response is a redirect that must not reach the client: as in
// kube-apiserver (UpgradeAwareHandler), any 3xx with a Location.
func (p *Proxy) rejects(status int, leads bool) bool {
	return !p.cfg.ForwardRedirects && leads && status/100 == 3
}
