package proxy

import (
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// timeoutParam reads the first ?timeout= as k8s.io/apiserver's WithRequestDeadline does: a Go duration, zero or absent for the server's own, anything else
// a bad request. Nothing is allocated when there is none.
func timeoutParam(rawQuery string) (time.Duration, error) {
	if !strings.Contains(rawQuery, "timeout=") {
		return 0, nil
	}
	for q := rawQuery; q != ""; {
		var pair string
		pair, q, _ = strings.Cut(q, "&")
		value, ok := strings.CutPrefix(pair, "timeout=")
		if !ok || value == "" {
			continue
		}
		if v, err := url.QueryUnescape(value); err == nil {
			value = v
		}
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 {
			return 0, apierrors.NewBadRequest("invalid timeout specified in the request URL")
		}
		return d, nil
	}
	return 0, nil
}
