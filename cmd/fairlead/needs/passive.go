package needs

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
)

// Outcome is how the last of many equal things ended that this process does anyway: reviews, or
// writes. The zero Outcome has seen none.
type Outcome struct{ fault atomic.Pointer[fault] }

type fault struct {
	err error
	at  time.Time
}

// Note notes the end of one.
func (o *Outcome) Note(err error) {
	if err != nil {
		o.fault.Store(&fault{err, time.Now()})
	} else if o.fault.Load() != nil {
		o.fault.Store(nil)
	}
}

// fresh is how long a fault counts if none was done since, but a like one succeeded.
const fresh = time.Minute

// Err returns the last one's error. like is when something like it last succeeded; zero means
// never.
func (o *Outcome) Err(like time.Time) error {
	f := o.fault.Load()
	if f == nil || time.Since(f.at) > fresh && like.After(f.at) {
		return nil
	}
	return f.err
}

// Clock compares this machine's clock with that of the servers that answer.
type Clock struct {
	ahead atomic.Int64 // of theirs, in seconds
	fault atomic.Pointer[error]
}

// Wrap fits rest.Config.Wrap.
func (c *Clock) Wrap(next http.RoundTripper) http.RoundTripper {
	return promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		sent := time.Now()
		res, err := next.RoundTrip(r)
		if invalid := (x509.CertificateInvalidError{}); errors.As(err, &invalid) && invalid.Reason == x509.Expired {
			c.fault.Store(&err)
		}
		if err != nil {
			return nil, err //nolint:wrapcheck // a transport passes errors on
		}
		c.fault.Store(nil)
		if at, err := http.ParseTime(res.Header.Get("Date")); err == nil {
			// The answer was made between the two.
			c.ahead.Store(int64((max(0, sent.Sub(at)-time.Second) - max(0, time.Until(at))).Seconds()))
		}
		return res, nil
	})
}

// Look is the check.
func (c *Clock) Look(time.Time) answer.Check {
	const maxAhead = 30 * time.Second // JSON web tokens have a tolerance of a minute, and Date a resolution of a second
	ahead := time.Duration(c.ahead.Load()) * time.Second
	found := answer.Check{Status: Failed, Advice: "synchronize the clocks of this machine and of the local apiserver (NTP): tokens and certificates are judged by them"}
	switch fault := c.fault.Load(); {
	case fault != nil:
		found.Message = "the local apiserver's certificate is not valid at this machine's time: " + (*fault).Error()
	case ahead > maxAhead:
		found.Message = fmt.Sprintf("this machine's clock is %s ahead of the local apiserver's", ahead)
	case ahead < -maxAhead:
		found.Message = fmt.Sprintf("this machine's clock is %s behind the local apiserver's", -ahead)
	default:
		return answer.Check{}
	}
	return found
}
