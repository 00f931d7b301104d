package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/registry/shadow"
)

func explainCommand() *cobra.Command {
	flags := genericclioptions.NewConfigFlags(true)
	flags.ImpersonateUserExtra = nil // Fairlead is asked about a name, a UID and groups only
	var method, agent, source string
	var form form
	cmd := &cobra.Command{
		Use: "explain PATH|RESOURCE|APISERVICE", Args: cobra.ExactArgs(1),
		Short: "Explain where a request goes, why, as which user, and what is wrong there",
		RunE: func(cmd *cobra.Command, args []string) error {
			printer, err1 := form.printer()
			// Fairlead is asked as the caller: the user of --as may have no access to it.
			user, uid, groups := *flags.Impersonate, *flags.ImpersonateUID, *flags.ImpersonateGroup
			flags.Impersonate, flags.ImpersonateUID, flags.ImpersonateGroup = nil, nil, nil
			if user == "" && (uid != "" || len(groups) > 0) {
				return cli.Usage(errors.New("--as-group and --as-uid need --as"))
			}
			c, err2 := connect(flags, cmd.OutOrStdout())
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			query := url.Values{"method": {method}, "agent": {agent}, "source": {source},
				"user": {user}, "uid": {uid}, "group": groups}
			return c.explain(cmd.Context(), args[0], query, printer)
		},
		ValidArgsFunction: completion(flags, 1),
	}
	cmd.Flags().StringVar(&method, "method", "GET", "HTTP method of the request.")
	cmd.Flags().StringVar(&agent, "agent", "", "User agent of the request, for rules of the policy.")
	cmd.Flags().StringVar(&source, "source", "", "IP address of the client, for rules of the policy. Empty: yours.")
	form.addFlags(cmd)
	groupFlags(cmd, flags)
	return cmd
}

// completion completes at most so many names of APIServices. It cannot show errors.
func completion(flags *genericclioptions.ConfigFlags, most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
		if c, err := connect(flags, io.Discard); err == nil && len(args) < most {
			s, _ := c.status(cmd.Context())
			for _, a := range s.APIServices {
				names = append(names, printable.Line(a.Name))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func (c *client) explain(ctx context.Context, subject string, query url.Values, p printers.ResourcePrinter) error {
	path, err := c.pathOf(ctx, subject)
	if err != nil {
		return err
	}
	query.Set("path", path)
	x := &answer.Explanation{}
	if err := c.get(ctx, answer.Below+"/explain", query, x); err != nil {
		return err
	}
	c.findShadowed(ctx, x)
	if p != nil {
		err = encode(c.out, p, "Explanation", x)
	} else {
		_, err = io.WriteString(c.out, c.describe(x))
	}
	if err == nil && x.Code != 0 {
		err = errUnavailable
	}
	return err
}

func (c *client) pathOf(ctx context.Context, subject string) (string, error) {
	if strings.HasPrefix(subject, "/") {
		return subject, nil
	}
	s, err := c.status(ctx)
	if err != nil {
		return "", err
	}
	if found := s.Those(func(a *answer.APIService) bool { return a.Name == subject }); len(found) > 0 {
		return found[0].Path(), nil
	}
	if s.Ready != "" { // discovery, which knows resources, would be asked for a minute
		return "", fmt.Errorf("%q is neither a path nor a known APIService, and this Fairlead takes no requests: %s",
			subject, s.Ready)
	}
	mapper, err := c.flags.ToRESTMapper()
	if err != nil {
		return "", fmt.Errorf("reading discovery: %w", err)
	}
	gvr, err := resource(mapper, subject)
	if err != nil {
		return "", fmt.Errorf("%q is neither a path nor an APIService nor a resource: %w", subject, err)
	}
	path := (&answer.APIService{Group: gvr.Group, Version: gvr.Version}).Path() + "/"
	kind, _ := mapper.KindFor(gvr) // it is known
	known, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	clusterWide := err == nil && known.Scope.Name() == meta.RESTScopeNameRoot
	if ns, _, err := c.flags.ToRawKubeConfigLoader().Namespace(); err == nil && !clusterWide { // as kubectl get
		path += "namespaces/" + ns + "/"
	}
	return path + gvr.Resource, nil
}

// resource parses a resource as kubectl get does: name, name.group, or name.version.group.
func resource(mapper meta.RESTMapper, subject string) (schema.GroupVersionResource, error) {
	full, partial := schema.ParseResourceArg(strings.ToLower(subject))
	if full != nil {
		if gvr, err := mapper.ResourceFor(*full); err == nil {
			return gvr, nil
		}
	}
	return mapper.ResourceFor(partial.WithVersion(""))
}

// findShadowed does as linter.shadowed. It finds nothing for a user who may not list CustomResourceDefinitions.
func (c *client) findShadowed(ctx context.Context, x *answer.Explanation) {
	a := x.APIService
	if a == nil || a.Kind != "remote" {
		return
	}
	gv := schema.GroupVersion{Group: a.Group, Version: a.Version}
	found, err := shadow.Find(ctx, c.apiserver, []schema.GroupVersion{gv})
	if name := found[gv]; err == nil && name != "" {
		x.Cause = joined("; ", x.Cause, fmt.Sprintf(
			"CustomResourceDefinition %s serves %s too, and is shadowed by APIService %s", name, gv, a.Name))
		x.Advice = joined("; ", x.Advice, "a group-version has one owner: delete one of the two, or rename the group")
	}
}

func joined(separator string, texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(t string) bool { return t == "" }), separator)
}

func (c *client) describe(x *answer.Explanation) string {
	var b strings.Builder
	line := func(name, text string, colour ...string) { // one colour, or none. There is no line for an empty text
		if text == "" {
			return
		}
		fmt.Fprintf(&b, "%-14s %s\n", name, c.palette.paint(strings.Join(colour, ""), printable.Line(text)))
	}
	line("Request:", x.Method+" "+x.Path+" ("+x.Verb+")")
	if x.Code != 0 {
		line("Destination:", fmt.Sprintf("%s: %d %s", x.Outcome(), x.Code, x.Message), bad)
	} else {
		line("Destination:", x.Outcome(), good)
	}
	line("Cause:", x.Cause, bad)
	line("Advice:", x.Advice)
	for i, why := range x.Why {
		line([]string{"Why:", ""}[min(i, 1)], why)
	}
	other := func(message string) string { // none that the cause repeats
		if x.Cause != "" && strings.HasSuffix(message, x.Cause) {
			return ""
		}
		return message
	}
	if a := x.APIService; a != nil {
		line("APIService:", a.Name)
		line("Policy:", a.Policy())
		line("Service:", a.Service)
		line("TLS name:", a.ServerName)
		if a.Trust != nil {
			line("Trusted by:", joined(" ", a.Trust.Source, a.Trust.Fault))
		}
		if a.Kind != "local" { // which is always available, whatever becomes of its requests
			line("Verdict:", joined(" ", string(a.Verdict.Status), a.Verdict.Reason, other(a.Verdict.Message)))
		}
		if d := a.Discovery; d != nil {
			line("Discovery:", joined(": ", d.Reason, other(d.Message)))
		}
		if o := a.OpenAPI; o != nil {
			line("OpenAPI:", joined(": ", o.Reason, other(o.Message)))
			line("Foreign:", strings.Join(o.Foreign, ", "))
		}
		for _, e := range a.Endpoints {
			line("Endpoint:", joined(": ", e.Address+" "+e.Health, map[bool]string{true: "slow"}[e.Slow],
				map[bool]string{true: "far"}[e.Far], other(e.Error), e.GoAway),
				map[string]string{"unhealthy": bad}[e.Health])
		}
	}
	if id := x.Identity; id != nil {
		line("As:", id.User+", "+id.How)
		for _, h := range id.Headers {
			line("", h)
		}
	}
	line("Authorization:", x.Authorization, map[bool]string{true: good, false: bad}[x.Authorization == "allowed"])
	line("Timeout:", x.Timeout)
	return b.String()
}
