package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairlead-proxy/fairlead/certs"
)

// linter is one run of lint.
type linter struct {
	o      *options
	output string
	names  []string // that clients use for the front door
	stdin  io.Reader

	found []certs.Finding
}

// lintFlags are the flags of serve that lint has, too: those that say who trusts whom.
func lintFlags() []string {
	return []string{
		"kubeconfig", "tls-cert-file", "tls-private-key-file", "tls-sni-cert-key", "client-ca-file", "requestheader-client-ca-file",
		"requestheader-allowed-names", "proxy-client-cert-file", "proxy-client-key-file", "enable-aggregator-routing", "allow-loopback-backends", "protected-groups",
	}
}

func lintCommand() *cobra.Command {
	l := &linter{o: &options{}}
	cmd := &cobra.Command{
		Use:   "lint [FILE…]",
		Short: "Find what is wrong, or soon will be, with APIServices and certificates",
		Long: `Find what is wrong, or soon will be, and say what to do about it: one line for each finding.

FILE is a manifest, a directory of them, or - for standard input: each APIService in it is checked without a cluster, against the Services and
ConfigMaps beside it. With --kubeconfig the cluster's own APIServices are checked, their bundles against what their backends present at this
moment, and the certificates that the other flags name (give those of serve) against what the cluster trusts.

Exit code 0: nothing is wrong, though there may be warnings. 1: something is. 2: the command line is.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			l.stdin = cmd.InOrStdin()
			if err := l.validate(args); err != nil {
				return usageError{err}
			}
			l.files(args)
			l.own()
			if l.o.kubeconfig != "" {
				l.live(cmd.Context())
			}
			return l.report(cmd.OutOrStdout())
		},
	}
	all := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	l.o.addFlags(all)
	for _, name := range lintFlags() {
		cmd.Flags().AddFlag(all.Lookup(name))
	}
	cmd.Flags().StringVarP(&l.output, "output", "o", "text", "Form of the findings: text (a line each) or json (a list).")
	cmd.Flags().StringSliceVar(&l.names, "serving-names", nil, "Names and addresses that clients use for Fairlead; the serving certificate must be valid for each.")
	cmd.Flags().SortFlags = false
	return cmd
}

// validate finds mistakes of the command line; a file that is missing is one.
func (l *linter) validate(files []string) error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if l.output != "text" && l.output != "json" {
		fault("--output %q is neither text nor json", l.output)
	}
	given := []struct{ flag, path string }{
		{"--kubeconfig", l.o.kubeconfig}, {"--tls-cert-file", l.o.tlsCert}, {"--tls-private-key-file", l.o.tlsKey}, {"--client-ca-file", l.o.clientCA},
		{"--requestheader-client-ca-file", l.o.requestHeaderCA}, {"--proxy-client-cert-file", l.o.proxyCert}, {"--proxy-client-key-file", l.o.proxyKey},
	}
	nothing := len(files) == 0 && len(l.o.sniPairs) == 0
	for _, g := range given {
		checkReadable(fault, g.flag, g.path)
		nothing = nothing && g.path == ""
	}
	for _, f := range files {
		if f != "-" {
			checkReadable(fault, "FILE", f)
		}
	}
	if (l.o.tlsCert == "") != (l.o.tlsKey == "") {
		fault("--tls-cert-file and --tls-private-key-file go together")
	}
	if (l.o.proxyCert == "") != (l.o.proxyKey == "") {
		fault("--proxy-client-cert-file and --proxy-client-key-file go together")
	}
	l.o.validateTLS(fault)
	if nothing {
		fault("nothing to check: name files, or the cluster with --kubeconfig, or certificates")
	}
	return errors.Join(faults...)
}

// error and warn add a finding.
func (l *linter) error(object, do, format string, args ...any) {
	l.found = append(l.found, certs.Finding{Object: object, Message: fmt.Sprintf(format, args...), Do: do})
}

func (l *linter) warn(object, do, format string, args ...any) {
	l.found = append(l.found, certs.Finding{Warning: true, Object: object, Message: fmt.Sprintf(format, args...), Do: do})
}

// jsonFinding is a finding as lint prints it with -o json.
type jsonFinding struct {
	Severity string `json:"severity"`
	Object   string `json:"object"`
	Message  string `json:"message"`
	Do       string `json:"do"`
}

// report prints the findings. Its error says that there are some of severity error.
func (l *linter) report(out io.Writer) error {
	list := make([]jsonFinding, 0, len(l.found)) // [] rather than null
	failed := 0
	for _, f := range l.found {
		severity := "warning"
		if !f.Warning {
			severity = "error"
			failed++
		}
		if l.output == "text" {
			if _, err := fmt.Fprintln(out, printable(f.String())); err != nil {
				return err
			}
		}
		list = append(list, jsonFinding{severity, f.Object, f.Message, f.Do})
	}
	if l.output == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		if err := e.Encode(list); err != nil {
			return err
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d errors, %d warnings", failed, len(l.found)-failed)
	}
	return nil
}

// printable keeps what certificates and manifests say from commanding the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsGraphic(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}
