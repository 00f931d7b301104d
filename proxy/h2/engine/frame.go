package engine

import (
	"golang.org/x/net/http2"

	"github.com/fairlead-proxy/fairlead/proxy/h2/wire"
)

const (
	minMaxFrame   = 1 << 14 // RFC 9113 §4.2: the size every endpoint accepts
	maxMaxFrame   = 1<<24 - 1
	largeFrame    = 64 << 10  // accepted from backends, and sent at most: DATA is forwarded as it comes, more only saves headers
	maxWindow     = 1<<31 - 1 // §6.9.1
	topStreamID   = 1<<31 - 1 // §5.1.1
	defaultWindow = 65535     // §6.9.2: a peer's assumption until it has read SETTINGS
)

// maxFrame is the largest frame that is accepted on a side.
func (d dir) maxFrame() int {
	if d == up {
		return minMaxFrame
	}
	return largeFrame
}

// padding returns how many bytes come before and after the content of a padded DATA or HEADERS
// frame (§6.1, §6.2); p is the start of its payload.
func padding(h wire.FrameHeader, p []byte) (before, after int, err *connError) {
	switch {
	case !h.Has(http2.FlagDataPadded): // the same bit as FlagHeadersPadded
		return 0, 0, nil
	case len(p) == 0:
		return 0, 0, &connError{http2.ErrCodeFrameSize, "padded frame without a pad length"}
	case int(p[0]) >= h.Length:
		return 0, 0, &connError{http2.ErrCodeProtocol, "padding as long as the frame"}
	}
	return 1, int(p[0]), nil
}

// connError is the reason to close a whole connection (RFC 9113 §5.4.1).
type connError struct {
	code http2.ErrCode
	why  string
}

func (e *connError) Error() string {
	return "http2 connection error " + e.code.String() + ": " + e.why
}
