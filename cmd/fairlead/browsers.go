package main

import (
	"regexp"
	"strings"

	"github.com/spf13/pflag"
)

// browserOptions are kube-apiserver's flags for browsers, with its checks
// (k8s.io/apiserver/pkg/server/options/server_run_options.go).
type browserOptions struct{ origins, hsts []string }

func (o *browserOptions) addFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.origins, "cors-allowed-origins", nil, "Regular expressions of origins whose pages may read answers (CORS), pinned to both ends of the host, such as '//example\\.com(:|$)'. Give it to the local apiserver, too. Empty: no CORS.")
	fs.StringSliceVar(&o.hsts, "strict-transport-security-directives", nil, "Directives of Strict-Transport-Security (HSTS), such as max-age=31536000,includeSubDomains,preload. Give it to the local apiserver, too. Empty: no HSTS.")
}

func (o *browserOptions) validate(fault func(string, ...any)) {
	for _, origin := range o.origins {
		if _, err := regexp.Compile(origin); err != nil {
			fault("--cors-allowed-origins: %w", err)
		} else if !strings.Contains(origin, "^") && !strings.Contains(origin, "//") || !strings.ContainsAny(origin, "$:") { // CVE-2022-1996
			fault("--cors-allowed-origins %q is not pinned to both ends of the host, as by //host(:|$)", origin)
		}
	}
	for _, d := range o.hsts {
		if age, ok := strings.CutPrefix(d, "max-age="); d != "includeSubDomains" && d != "preload" && (!ok || strings.Contains(age, "=")) {
			fault("--strict-transport-security-directives: %q is not max-age=…, includeSubDomains or preload", d)
		}
	}
}
